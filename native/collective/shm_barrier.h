#pragma once

#include <cstdint>

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
  ShmBarrier(Arena& arena, BarrierCell& cell, int members, Nanos spin);

  /// Publishes everything this member wrote (release).
  void arrive();
  /// Blocks until all members have arrived as often as this one (acquire).
  /// Throws Error(kAborted) when the job is aborted.
  void wait();

  void set_spin(Nanos spin) { spin_ = spin; }

 private:
  [[nodiscard]] bool open() const;
  void throw_if_aborted() const;

  Arena& arena_;
  BarrierCell& cell_;
  std::uint64_t members_;
  Nanos spin_;
  std::uint32_t generation_ = 0;  // arrivals of this member
};

}  // namespace hvdtune
