#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collective/communicator.h"
#include "transport/arena.h"

namespace hvdtune {

/// A barrier in two halves: arrive() tells the others that this member's step is published, wait()
/// returns once everybody's is. Work that needs no peer goes between the two.
///
/// Members arrive once a generation. The last one to arrive opens the gate with one store, and
/// makes a system call only if somebody sleeps.
class ShmBarrier {
 public:
  /// `spin`: how long to poll before sleeping; 0 when ranks outnumber the CPUs, where polling would
  /// only keep the awaited rank from running.
  ShmBarrier(Arena& arena, BarrierCell& cell, int members, int index, Nanos spin);

  /// Publishes everything this member wrote (release).
  void arrive();
  /// Blocks until all members have arrived as often as this one (acquire).
  /// Throws Error(kAborted) when the job is aborted.
  void wait();

  void set_spin(Nanos spin) { spin_ = spin; }

  /// When a wait() lasts longer than `patience`, and again after each further `patience`, the
  /// lowest member that has arrived calls `report` (with indices of members) within its wait().
  void report_absence(Nanos patience, AbsenceReport report);

 private:
  [[nodiscard]] bool open() const;
  void throw_if_aborted() const;
  void report_missing(Nanos waited) const;

  Arena& arena_;
  BarrierCell& cell_;
  std::uint64_t members_;
  int index_;
  Nanos spin_;
  Nanos patience_ = kForever;
  AbsenceReport report_;
  std::uint32_t generation_ = 0;  // arrivals of this member
};

}  // namespace hvdtune
