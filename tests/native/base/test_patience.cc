// How a waiting thread finds out that giving way hands its CPU to somebody who computes.
#include "base/threads/patience.h"

#include "check.h"

namespace hvdtune::testing::test_patience {
namespace {

constexpr Nanos kSlice = 4 * kMillisecond;

/// Long yields one after the other from `now`, until it no longer pays; how many there were.
int yields_until_asleep(GivingWay& way, Nanos& now) {
  int yields = 0;
  while (way.pays(now)) {
    CHECK(yields < 1000);
    way.took(now, now + kSlice);
    now += kSlice;
    ++yields;
  }
  return yields;
}

TEST(a_single_long_yield_changes_nothing) {
  GivingWay way;
  Nanos now = kSecond;
  for (int step = 0; step < 100; ++step) {
    way.took(now, now + kSlice);
    now += kSlice;
    CHECK(way.pays(now));
    now += 100 * kMillisecond;
  }
}

TEST(who_loses_most_of_a_while_sleeps) {
  GivingWay way;
  Nanos now = kSecond;
  CHECK(yields_until_asleep(way, now) > 2);
  CHECK(!way.pays(now));
  CHECK(!way.pays(now + 10 * kMillisecond));
  CHECK(way.pays(now + kSecond));
}

TEST(it_sleeps_longer_where_nothing_has_changed) {
  GivingWay way;
  Nanos now = kSecond;
  yields_until_asleep(way, now);
  Nanos last = 0;
  for (int again = 0; again < 6; ++again) {
    const Nanos began = now;
    while (!way.pays(now)) now += kMillisecond;
    CHECK(now - began >= last);
    CHECK(now - began <= kSecond);
    last = now - began;
    CHECK(yields_until_asleep(way, now) == 1);
  }
  CHECK(last >= 200 * kMillisecond);
}

TEST(it_forgets_when_the_cpu_is_free_again) {
  GivingWay way;
  Nanos now = kSecond;
  yields_until_asleep(way, now);
  now += 10 * kSecond;
  CHECK(way.pays(now));
  CHECK(yields_until_asleep(way, now) > 2);
}

TEST(a_waiter_that_sleeps_does_not_yield) {
  GivingWay& way = GivingWay::of_this_thread();
  Nanos now = monotonic_now();
  for (int again = 0; again < 6; ++again) {  // until long after what the clock shows
    yields_until_asleep(way, now);
    while (!way.pays(now)) now += kMillisecond;
  }
  yields_until_asleep(way, now);
  int looks = 0;
  const Patience patience{.awake = kSecond, .gives_way = true};
  CHECK(!patience.wait([&] { return ++looks > 1; }));
  CHECK(looks == 1);
}

}  // namespace
}  // namespace hvdtune::testing::test_patience
