#pragma once

#include "base/clock.h"
#include "base/threads/futex.h"

namespace hvdtune {

/// How a thread waits for another rank before it sleeps on a futex. A wake-up from sleep costs tens
/// of microseconds, so a thread that expects an answer soon stays awake for a while: it polls, or,
/// if ranks outnumber the CPUs and polling would only keep the awaited rank from running, it yields
/// its CPU to any thread that can run. A thread that gives way costs nothing while others have
/// work, and the switch to the rank it waits for (about a microsecond) is far cheaper than waking
/// it.
struct Patience {
  Nanos awake = 0;         ///< how long to stay awake; 0 = sleep at once
  bool gives_way = false;  ///< give_way() between two looks instead of polling

  /// Looks until ready() is true or `awake` is over; returns whether ready() was true.
  template <typename Ready>
  bool wait(Ready&& ready) const {
    if (ready()) return true;
    if (awake <= 0) return false;
    if (gives_way) return wait_giving_way(ready);
    const Nanos until = monotonic_now() + awake;
    do {
      for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
        if (ready()) return true;
        cpu_relax();
      }
    } while (monotonic_now() < until);
    return false;
  }

 private:
  static constexpr int kPollsPerClockRead = 32;

  template <typename Ready>
  bool wait_giving_way(Ready& ready) const;
};

/// Decides whether giving way still pays. If another thread computes on this CPU, sched_yield()
/// gives it the CPU for a whole time slice of milliseconds, whereas the kernel prefers a thread
/// that wakes from a futex to the computing one. So a thread that has lost most of a period
/// (kWhile) in long yields stops giving way for some time, and for longer if the same happens again
/// afterwards. A single long yield proves nothing: the awaited rank itself may have had much to do.
/// One object per thread.
class GivingWay {
 public:
  /// The calling thread's object.
  static GivingWay& of_this_thread();

  /// Whether to give way at `now`, or to sleep.
  [[nodiscard]] bool pays(Nanos now) const { return now >= asleep_until_; }

  /// sched_yield(); `now` is the time before, the result the time after it.
  Nanos yield(Nanos now) {
    yield_once();
    const Nanos after = monotonic_now();
    if (after - now >= kLong) took(now, after);
    return after;
  }

  /// Accounts for a yield that lasted from `from` to `to`: kLong or more.
  void took(Nanos from, Nanos to);

  /// Longer than a rank usually works before it waits itself, shorter than a time slice.
  static constexpr Nanos kLong = 2 * kMillisecond;

 private:
  static constexpr Nanos kWhile = 40 * kMillisecond;
  static constexpr Nanos kMost = kWhile / 2;  // lost in long yields
  static constexpr Nanos kShortestSleep = 50 * kMillisecond;
  static constexpr Nanos kLongestSleep = 400 * kMillisecond;

  static void yield_once();

  Nanos while_began_ = 0;
  Nanos lost_ = 0;  ///< in long yields since then
  Nanos asleep_until_ = 0;
  Nanos sleep_ = 0;  ///< how long, the last time
};

template <typename Ready>
bool Patience::wait_giving_way(Ready& ready) const {
  GivingWay& way = GivingWay::of_this_thread();
  Nanos now = monotonic_now();
  const Nanos until = now + awake;
  while (way.pays(now) && now < until) {
    now = way.yield(now);
    if (ready()) return true;
  }
  return false;
}

}  // namespace hvdtune
