#pragma once

#include "base/clock.h"
#include "base/threads/futex.h"

namespace hvdtune {

/// How a thread waits for another rank before it sleeps on a futex. A wake-up from sleep costs tens
/// of microseconds, so a thread that expects an answer soon stays awake for a while: it polls, or,
/// where ranks outnumber the CPUs and polling would only keep the awaited rank from running, it
/// gives way to whoever can run. A thread that gives way costs nothing while others have work, and
/// the switch to the rank it waits for (about a microsecond) is far cheaper than waking it.
struct Patience {
  Nanos awake = 0;         ///< how long to stay awake; 0 = sleep at once
  bool gives_way = false;  ///< give_way() between two looks instead of polling

  /// Looks until ready() or patience is at an end; whether ready() was true.
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

/// Giving way, until it turns out to be a mistake. Where somebody else computes on this CPU,
/// sched_yield() hands it to him for a whole time slice of milliseconds, while a thread that sleeps
/// on a futex is put before him when it is woken. So a thread that has lost most of a while that
/// way gives way no more for some time, and longer when it finds the same afterwards. Single long
/// yields are nothing: the awaited rank itself may have had much to do. One a thread.
class GivingWay {
 public:
  /// Of the calling thread.
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

  /// What yield() has learned: one that took from `from` to `to`, kLong or more.
  void took(Nanos from, Nanos to);

  /// Longer than what a rank usually does before it waits itself, shorter than a time slice.
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
