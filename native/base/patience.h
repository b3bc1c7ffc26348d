#pragma once

#include <sched.h>

#include "base/clock.h"
#include "base/futex.h"

namespace hvdtune {

/// How a thread waits for another rank before it sleeps on a futex. A wake-up from sleep costs tens
/// of microseconds, so a thread that expects an answer soon stays awake for a while: it polls, or,
/// where ranks outnumber the CPUs and polling would only keep the awaited rank from running, it
/// gives way to whoever can run. A thread that gives way costs nothing while others have work, and
/// the switch to the rank it waits for (about a microsecond) is far cheaper than waking it.
struct Patience {
  Nanos awake = 0;         ///< how long to stay awake; 0 = sleep at once
  bool gives_way = false;  ///< sched_yield() between two looks instead of polling

  /// Looks until ready() or patience is at an end; whether ready() was true.
  template <typename Ready>
  bool wait(Ready&& ready) const {
    if (ready()) return true;
    if (awake <= 0) return false;
    const Nanos until = monotonic_now() + awake;
    do {
      if (gives_way) {
        sched_yield();
        if (ready()) return true;
        continue;
      }
      for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
        if (ready()) return true;
        cpu_relax();
      }
    } while (monotonic_now() < until);
    return false;
  }

 private:
  static constexpr int kPollsPerClockRead = 32;
};

}  // namespace hvdtune
