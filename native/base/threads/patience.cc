#include "base/threads/patience.h"

#include <sched.h>

#include <algorithm>

namespace hvdtune {

GivingWay& GivingWay::of_this_thread() {
  static thread_local GivingWay way;
  return way;
}

void GivingWay::yield_once() { sched_yield(); }

void GivingWay::took(Nanos from, Nanos to) {
  if (to - while_began_ > kWhile) {
    while_began_ = from;
    lost_ = 0;
  }
  lost_ += to - from;
  // Giving way has just resumed: one long yield is enough to know that it still does not pay.
  const bool still = sleep_ > 0 && from - asleep_until_ < kWhile;
  if (lost_ < kMost && !still) return;
  sleep_ = still ? std::min(2 * sleep_, kLongestSleep) : kShortestSleep;
  asleep_until_ = to + sleep_;
  lost_ = 0;
}

}  // namespace hvdtune
