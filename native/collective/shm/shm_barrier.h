#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/threads/patience.h"
#include "collective/communicator.h"
#include "transport/arena/arena.h"

namespace hvdtune {

/// A barrier in two halves: arrive() tells the others that this member's step is published, wait()
/// returns after all members' steps are. Work that needs no peer can be done between the two.
///
/// Members arrive once per generation. The last one to arrive opens the gate with one store, and
/// makes a system call only if a member sleeps.
class ShmBarrier {
 public:
  ShmBarrier(Arena& arena, BarrierCell& cell, int members, int index, Patience patience);

  /// Publishes everything this member wrote (release).
  void arrive();
  /// Blocks until all members have arrived as often as this one (acquire). Throws Error(kAborted)
  /// if the job is aborted.
  void wait();

  /// As in Communicator.
  void time_waits(bool timed) {
    timed_ = timed;
    waited_ = 0;
  }
  [[nodiscard]] Nanos waited() const { return waited_; }

  /// When a wait() lasts longer than `limit`, and again after each further `limit`, the
  /// lowest member that has arrived calls `report` (with indices of members) within its wait().
  void report_absence(Nanos limit, AbsenceReport report);

 private:
  [[nodiscard]] bool open() const;
  void wait_until_open();
  void throw_if_aborted() const;
  void report_missing(Nanos waited) const;

  Arena& arena_;
  BarrierCell& cell_;
  std::uint64_t members_;
  int index_;
  Patience patience_;
  Nanos absence_limit_ = kForever;
  AbsenceReport report_;
  std::uint32_t generation_ = 0;  // arrivals of this member
  bool timed_ = false;
  Nanos waited_ = 0;
};

}  // namespace hvdtune
