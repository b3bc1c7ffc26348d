#include "observe/stragglers/straggler.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_straggler {
namespace {

using Awaited = StragglerWatch::Awaited;

constexpr Nanos kTensorGap = 100 * kMicrosecond;

std::vector<int> on_one_host(int ranks) {
  return std::vector<int>(static_cast<std::size_t>(ranks));
}

/// A job whose steps last `compute` plus what the latest rank adds to it.
struct Job {
  Job(int size, StragglerOptions options = {}) : Job(on_one_host(size), options) {}
  /// `host_of`: by rank.
  explicit Job(const std::vector<int>& host_of, StragglerOptions options = {})
      : ranks(static_cast<int>(host_of.size())), watch(options, host_of) {}

  /// One step of ten tensors; `late[rank]`: how much later than the others it has each of them.
  std::optional<StragglerNotice> step(const std::vector<Nanos>& late,
                                      Nanos compute = 100 * kMillisecond) {
    constexpr int kTensors = 10;
    Nanos end = 0;
    // In the order in which a coordinator reads them: one rank's, then the next one's.
    for (int rank = 0; rank < ranks; ++rank) {
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        watch.announced(rank,
                        now + compute + late[static_cast<std::size_t>(rank)] + tensor * kTensorGap);
      }
    }
    const auto last = std::max_element(late.begin(), late.end());
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      std::vector<Nanos> times;
      for (const Nanos by : late) times.push_back(now + compute + by + tensor * kTensorGap);
      end = now + compute + *last + tensor * kTensorGap;
      watch.complete(static_cast<int>(last - late.begin()), end, awaited, times);
    }
    now = end;
    const StragglerWatch::Notices notices = watch.end_step(++number, now);
    host = notices.host;
    return notices.rank;
  }

  int ranks;
  StragglerWatch watch;
  Awaited awaited = Awaited::kElsewhere;
  std::optional<StragglerNotice> host;  // of the last step
  Nanos now = kSecond;
  std::uint64_t number = 0;
};

TEST(a_late_rank_is_named_once_with_what_it_costs_and_since_when) {
  Job job(4);
  for (int i = 0; i < 30; ++i) CHECK(!job.step({0, 0, 0, 0}));
  std::optional<StragglerNotice> named;
  int named_after = 0;
  for (int i = 1; i <= 300; ++i) {
    const auto notice = job.step({0, 0, 30 * kMillisecond, 0});
    if (!notice) continue;
    CHECK(!named.has_value());  // once
    named = notice;
    named_after = i;
  }
  CHECK(named.has_value());
  CHECK(named->begins);
  CHECK(named_after <= 100);
  CHECK_EQ(named->who, 2);
  CHECK_EQ(named->since_step, std::uint64_t{31});
  // It is late for all ten tensors by 30 ms, and costs 30 ms, not 300.
  CHECK_EQ(named->late, 30 * kMillisecond);
  CHECK(named->share > 0.22 && named->share < 0.24);
  CHECK_EQ(job.watch.ranks().named(), 2);
  CHECK_EQ(job.watch.ranks().lately()[2].late, 30 * kMillisecond);
  CHECK(job.watch.ranks().lately()[2].last_share > 0.99);
  CHECK_EQ(job.watch.ranks().lately()[1].late, Nanos{0});
}

TEST(what_takes_long_once_is_in_no_mean_and_what_comes_again_is) {
  const auto after = [](const std::vector<int>& pauses, int steps) {
    Job job(4);
    for (int step = 1; step <= steps; ++step) {
      const bool paused = std::count(pauses.begin(), pauses.end(), step) > 0;
      job.step({0, paused ? 5 * kSecond : Nanos{0}, kMillisecond, 0});
    }
    return job.watch.ranks().lately();
  };
  // The first, whose begin is not known; the second, which still compiles; once in the middle.
  for (const std::vector<int>& pauses : {std::vector{1}, {2}, {1, 2, 3}, {30}}) {
    const std::vector<Lateness> lately = after(pauses, 40);
    CHECK_EQ(lately[1].late, Nanos{0});
    CHECK_EQ(lately[2].late, kMillisecond);
    CHECK(lately[2].last_share > 0.99);
  }
  CHECK(after({30, 40, 50, 60}, 61)[1].late > 100 * kMillisecond);
}

TEST(a_rank_that_is_late_in_every_step_is_named_in_spite_of_a_start) {
  Job job(4);
  job.step({5 * kSecond, 0, 0, 0});
  job.step({5 * kSecond, 0, 0, 0});
  int named = -1;
  for (int i = 0; i < 100; ++i) {
    if (const auto notice = job.step({0, 0, 30 * kMillisecond, 0})) named = notice->who;
  }
  CHECK_EQ(named, 2);
}

TEST(its_end_is_told_once) {
  Job job(3);
  for (int i = 0; i < 100; ++i) job.step({0, 20 * kMillisecond, 0});
  CHECK_EQ(job.watch.ranks().named(), 1);
  int ends = 0;
  for (int i = 0; i < 100; ++i) {
    const auto notice = job.step({0, 0, 0});
    if (!notice) continue;
    ++ends;
    CHECK(!notice->begins);
    CHECK_EQ(notice->who, 1);
    CHECK_EQ(notice->until_step, std::uint64_t{100});
  }
  CHECK_EQ(ends, 1);
  CHECK_EQ(job.watch.ranks().named(), -1);
}

TEST(one_that_is_late_now_and_then_does_not_fill_the_log) {
  Job job(2);
  int begins = 0;
  int ends = 0;
  const auto spell = [&](int steps, Nanos late) {
    for (int i = 0; i < steps; ++i) {
      const auto notice = job.step({0, late}, 20 * kMillisecond);
      if (notice) ++(notice->begins ? begins : ends);
    }
  };
  for (int times = 0; times < 50; ++times) {
    spell(150, 10 * kMillisecond);
    spell(60, 0);
  }
  CHECK_EQ(begins, 1);
  CHECK_EQ(ends, 1);
  // It is for good now; and after that, the first spell is news again.
  spell(2000, 10 * kMillisecond);
  spell(60, 0);
  CHECK_EQ(begins, 2);
  CHECK_EQ(ends, 2);
  spell(60, 10 * kMillisecond);
  CHECK_EQ(begins, 3);
}

TEST(a_spell_that_waited_to_be_told_is_told_from_its_beginning) {
  Job job(3);
  std::optional<StragglerNotice> told;
  const auto spell = [&](int steps, std::vector<Nanos> late) {
    told.reset();
    for (int i = 0; i < steps; ++i) {
      const auto notice = job.step(late, 20 * kMillisecond);
      if (notice && notice->begins) told = notice;
    }
  };
  for (const int steps : {100, 400, 800}) {
    spell(steps, {0, 10 * kMillisecond, 0});
    CHECK(told.has_value());
    spell(60, {0, 0, 0});
  }
  const std::uint64_t before = job.number;
  spell(1500, {0, 10 * kMillisecond, 0});
  CHECK(told.has_value());
  CHECK_EQ(told->since_step, before + 1);
  // Other ranks have not been late, and need not wait.
  spell(60, {0, 0, 0});
  spell(60, {0, 0, 10 * kMillisecond});
  CHECK(told.has_value());
  CHECK_EQ(told->who, 2);
}

TEST(a_spell_of_short_steps_lasts_half_a_second_before_it_is_told) {
  Job job(2);
  for (int i = 0; i < 100; ++i) CHECK(!job.step({0, kMillisecond}, kMillisecond));
  CHECK(job.now < kSecond + Blame::kLeastSpell);
  for (int i = 0; i < 60; ++i) CHECK(!job.step({0, 0}, kMillisecond));
  const std::uint64_t before = job.number;
  const Nanos began = job.now;
  std::optional<StragglerNotice> told;
  while (!told && job.number < before + 1000) told = job.step({0, kMillisecond}, kMillisecond);
  CHECK(told.has_value());
  CHECK_EQ(told->since_step, before + 1);
  CHECK(job.now - began >= Blame::kLeastSpell);
  CHECK(job.now - began <= Blame::kLeastSpell + 10 * kMillisecond);
}

TEST(ranks_that_take_turns_are_not_named_however_late) {
  std::mt19937 random(7);
  for (const int size : {2, 3, 8}) {
    Job job(size);
    for (int i = 0; i < 5000; ++i) {
      std::vector<Nanos> late(static_cast<std::size_t>(size), 0);
      late[random() % static_cast<unsigned>(size)] = 50 * kMillisecond;
      CHECK(!job.step(late).has_value());
    }
  }
}

TEST(a_rank_that_costs_too_little_is_not_named) {
  Job below_share(2);
  Job below_least(2);
  for (int i = 0; i < 200; ++i) {
    CHECK(!below_share.step({0, 4 * kMillisecond}));
    CHECK(!below_least.step({0, 400 * kMicrosecond}, kMillisecond));
  }
  Job asked_for(2, {.share = 0.02});
  bool named = false;
  for (int i = 0; i < 100; ++i) named |= asked_for.step({0, 4 * kMillisecond}).has_value();
  CHECK(named);
}

TEST(nobody_is_named_when_it_is_off) {
  Job job(2, {.share = 0});
  for (int i = 0; i < 200; ++i) CHECK(!job.step({0, 90 * kMillisecond}));
}

TEST(a_rank_with_an_excuse_is_asked_again_later) {
  Job job(2);
  int asked = 0;
  job.watch.set_excuse([&](int rank, Nanos late) {
    CHECK_EQ(rank, 1);
    CHECK_EQ(late, 20 * kMillisecond);
    return ++asked < 3;
  });
  int named_after = 0;
  for (int i = 1; i <= 200; ++i) {
    if (job.step({0, 20 * kMillisecond})) named_after = i;
  }
  CHECK_EQ(asked, 3);
  CHECK(named_after >= 36 + 2 * 40);
}

TEST(lateness_at_several_points_of_a_step_adds_up) {
  StragglerWatch watch({}, on_one_host(2));
  Nanos now = kSecond;
  std::optional<StragglerNotice> named;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    for (int point = 0; point < 10; ++point) {  // all wait for each other at each of them
      now += 10 * kMillisecond;
      watch.announced(0, now);
      now += 3 * kMillisecond;
      watch.announced(1, now);
      watch.complete(1, now, Awaited::kOnItsHost);
    }
    if (const auto notice = watch.end_step(step, now).rank) named = notice;
  }
  CHECK(named.has_value());
  CHECK_EQ(named->late, 30 * kMillisecond);
}

TEST(work_of_a_process_set_is_not_lateness) {
  // Rank 1 alone is in a set: four operations of it, 5 ms each, before what all ranks do. `more`:
  // how late it is besides.
  for (const Nanos more : {Nanos{0}, 20 * kMillisecond}) {
    StragglerWatch watch({}, on_one_host(3));
    Nanos now = kSecond;
    std::optional<StragglerNotice> named;
    for (std::uint64_t step = 1; step <= 100; ++step) {
      now += 10 * kMillisecond;
      watch.announced(0, now);
      watch.announced(2, now);
      for (int operation = 0; operation < 4; ++operation) {
        now += 5 * kMillisecond;
        watch.announced(1, now);
        watch.apart(1, now);
        watch.apart(1, now - kMillisecond);  // an older one is nothing new
      }
      now += more + 100 * kMicrosecond;
      watch.announced(1, now);
      watch.complete(1, now, Awaited::kOnItsHost);
      if (const auto notice = watch.end_step(step, now).rank) named = notice;
    }
    CHECK_EQ(named.has_value(), more > 0);
    CHECK_EQ(watch.ranks().lately()[1].late, more + 100 * kMicrosecond);
  }
}

TEST(work_of_a_process_set_excuses_nobody_else) {
  StragglerWatch watch({}, on_one_host(3));
  Nanos now = kSecond;
  std::optional<StragglerNotice> named;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    now += 10 * kMillisecond;
    watch.announced(0, now);
    watch.announced(1, now);
    watch.apart(1, now + 15 * kMillisecond);  // it goes on with its own while it waits
    now += 20 * kMillisecond;
    watch.announced(2, now);
    watch.complete(2, now, Awaited::kOnItsHost);
    if (const auto notice = watch.end_step(step, now).rank) named = notice;
  }
  CHECK(named.has_value());
  CHECK_EQ(named->who, 2);
  CHECK_EQ(named->late, 20 * kMillisecond);
}

TEST(what_nobody_waits_for_costs_nothing) {
  StragglerWatch watch({}, on_one_host(2));
  Nanos now = kSecond;
  for (std::uint64_t step = 1; step <= 200; ++step) {
    watch.announced(0, now);
    watch.announced(1, now + 50 * kMillisecond);
    watch.complete(1, now + 50 * kMillisecond, Awaited::kByNobody);
    now += 60 * kMillisecond;
    CHECK(!watch.end_step(step, now).rank.has_value());
  }
}

TEST(steps_that_never_end_take_no_more_memory) {
  StragglerWatch watch({}, on_one_host(2));
  for (Nanos now = 1; now < 100'000; ++now) {
    watch.announced(0, now);
    watch.apart(1, now);
    watch.complete(0, now, Awaited::kOnItsHost);
  }
  CHECK(!watch.end_step(1, 100'000).rank.has_value());
}

// ---- hosts --------------------------------------------------------------------------------------

/// What a job tells in `steps` steps, `late(step)` by rank.
struct Told {
  std::vector<StragglerNotice> ranks;
  std::vector<StragglerNotice> hosts;
};

template <class Late>
Told told_in(Job& job, int steps, const Late& late) {
  Told told;
  for (int step = 0; step < steps; ++step) {
    if (const auto notice = job.step(late(step))) told.ranks.push_back(*notice);
    if (job.host) told.hosts.push_back(*job.host);
  }
  return told;
}

Told told_in(Job& job, int steps, const std::vector<Nanos>& late) {
  return told_in(job, steps, [&](int) { return late; });
}

TEST(a_host_that_is_late_as_a_whole_is_named_and_its_end_too) {
  std::mt19937 random(3);
  for (const Nanos jitter : {Nanos{0}, 4 * kMillisecond}) {  // 0: as it is when one message has all
    Job job({0, 0, 1, 1});
    CHECK(told_in(job, 30, {0, 0, 0, 0}).hosts.empty());
    const auto late = [&] {
      return 30 * kMillisecond + (jitter > 0 ? static_cast<Nanos>(random()) % jitter : 0);
    };
    const Told slow =
        told_in(job, 100, [&](int) { return std::vector{Nanos{0}, Nanos{0}, late(), late()}; });
    CHECK(slow.ranks.empty());
    CHECK_EQ(slow.hosts.size(), std::size_t{1});
    const StragglerNotice& named = slow.hosts.front();
    CHECK(named.begins);
    CHECK_EQ(named.who, 1);
    CHECK_EQ(named.since_step, std::uint64_t{31});
    CHECK(named.late >= 30 * kMillisecond - kMillisecond &&
          named.late <= 30 * kMillisecond + jitter);
    CHECK_EQ(job.watch.hosts().named(), 1);
    CHECK(job.watch.hosts().lately()[1].last_share > 0.99);
    CHECK_EQ(job.watch.hosts().lately()[0].late, Nanos{0});
    const Told healed = told_in(job, 100, {0, 0, 0, 0});
    CHECK(healed.ranks.empty());
    CHECK_EQ(healed.hosts.size(), std::size_t{1});
    CHECK(!healed.hosts.front().begins);
    CHECK_EQ(healed.hosts.front().until_step, std::uint64_t{130});
    CHECK_EQ(job.watch.hosts().named(), -1);
  }
}

TEST(of_a_host_with_one_late_rank_the_rank_alone_is_named) {
  for (const std::size_t on_each : {1U, 2U, 3U, 4U, 8U}) {
    std::vector<int> host_of(2 * on_each, 0);
    std::fill(host_of.begin() + static_cast<std::ptrdiff_t>(on_each), host_of.end(), 1);
    Job job(host_of);
    std::vector<Nanos> late(2 * on_each, 0);
    late.back() = 30 * kMillisecond;
    const Told told = told_in(job, 200, late);
    CHECK_EQ(told.ranks.size(), std::size_t{1});
    CHECK_EQ(told.ranks.front().who, static_cast<int>(2 * on_each - 1));
    CHECK(told.hosts.empty());
    CHECK_EQ(job.watch.hosts().lately()[1].late, Nanos{0});
  }
}

TEST(a_late_rank_that_slows_its_neighbours_is_named_alone) {
  Job job({0, 0, 1, 1});
  const Told told = told_in(job, 200, {0, 0, 10 * kMillisecond, 40 * kMillisecond});
  CHECK_EQ(told.ranks.size(), std::size_t{1});
  CHECK_EQ(told.ranks.front().who, 3);
  CHECK(told.hosts.empty());
  // The rank is well again, its host is not.
  const Told later = told_in(job, 200, {0, 0, 10 * kMillisecond, 10 * kMillisecond});
  CHECK_EQ(later.ranks.size(), std::size_t{1});
  CHECK(!later.ranks.front().begins);
  CHECK_EQ(later.hosts.size(), std::size_t{1});
  CHECK_EQ(later.hosts.front().who, 1);
}

TEST(a_late_rank_that_nobody_names_again_so_soon_excuses_its_host) {
  Job job({0, 0, 1, 1});
  const std::vector<Nanos> late{0, 0, 10 * kMillisecond, 40 * kMillisecond};
  const std::vector<Nanos> well(4, 0);
  CHECK_EQ(told_in(job, 150, late).ranks.size(), std::size_t{1});
  (void)told_in(job, 60, well);
  const Told again = told_in(job, 150, late);  // within the rank's patience
  CHECK(again.ranks.empty());
  CHECK(again.hosts.empty());
}

TEST(a_host_that_gets_slower_than_its_late_rank_is_named_beside_it) {
  Job job({0, 0, 1, 1});
  CHECK(told_in(job, 200, {0, 0, 10 * kMillisecond, 40 * kMillisecond}).hosts.empty());
  const Told later = told_in(job, 200, {0, 0, 40 * kMillisecond, 60 * kMillisecond});
  CHECK(later.ranks.empty());  // it stays named
  CHECK_EQ(later.hosts.size(), std::size_t{1});
}

TEST(a_slow_host_with_a_rank_that_is_slower_still_is_named_beside_it) {
  Job job({0, 0, 1, 1});
  const Told told = told_in(job, 200, {0, 0, 40 * kMillisecond, 50 * kMillisecond});
  CHECK_EQ(told.ranks.size(), std::size_t{1});
  CHECK_EQ(told.hosts.size(), std::size_t{1});
  // Nothing is counted twice.
  CHECK(told.ranks.front().late + told.hosts.front().late <= 50 * kMillisecond);
  CHECK(told.ranks.front().late >= 9 * kMillisecond);
  CHECK(told.hosts.front().late >= 39 * kMillisecond);
}

TEST(more_than_half_of_a_hosts_ranks_are_its_typical_one) {
  constexpr Nanos kLate = 30 * kMillisecond;
  Job half({0, 0, 1, 1, 1, 1});
  CHECK(told_in(half, 200, {0, 0, 0, 0, kLate, kLate}).hosts.empty());
  Job most({0, 0, 1, 1, 1, 1});  // one of them has less to do
  CHECK_EQ(told_in(most, 200, {0, 0, 0, kLate, kLate, kLate}).hosts.size(), std::size_t{1});
}

TEST(hosts_that_take_turns_and_noise_are_not_named) {
  std::mt19937 random(11);
  for (const std::vector<int>& host_of :
       {std::vector{0, 0, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2}}) {
    Job noise(host_of);
    Job turns(host_of);
    const Told noisy = told_in(noise, 3000, [&](int) {
      std::vector<Nanos> late;
      for (std::size_t i = 0; i < host_of.size(); ++i) late.push_back(random() % 50 * kMillisecond);
      return late;
    });
    const Told turning = told_in(turns, 3000, [&](int) {
      const int last = static_cast<int>(random() % static_cast<unsigned>(host_of.back() + 1));
      std::vector<Nanos> late;
      for (const int host : host_of) late.push_back(host == last ? 50 * kMillisecond : 0);
      return late;
    });
    for (const Told& told : {noisy, turning}) {
      CHECK(told.ranks.empty());
      CHECK(told.hosts.empty());
    }
  }
}

TEST(two_hosts_that_are_as_late_are_not_named) {
  Job job({0, 0, 1, 1, 2, 2});
  const Nanos late = 30 * kMillisecond;
  const Told told = told_in(job, 200, {0, 0, late, late, late, late});
  CHECK(told.ranks.empty());
  CHECK(told.hosts.empty());
}

TEST(a_slow_host_costs_nothing_while_a_rank_elsewhere_is_later) {
  Job job({0, 0, 1, 1});
  const Told told = told_in(job, 200, {60 * kMillisecond, 0, 30 * kMillisecond, 30 * kMillisecond});
  CHECK_EQ(told.ranks.size(), std::size_t{1});
  CHECK_EQ(told.ranks.front().who, 0);
  CHECK(told.hosts.empty());
}

TEST(a_host_that_only_its_own_ranks_wait_for_is_not_late) {
  Job job({0, 0, 1, 1});
  job.awaited = Awaited::kOnItsHost;
  CHECK(told_in(job, 200, {0, 0, 30 * kMillisecond, 30 * kMillisecond}).hosts.empty());
}

TEST(work_of_a_process_set_is_not_a_hosts_lateness) {
  // Ranks 2 and 3 have a set of their own: until the last of its operations they have work that
  // the others do not have. `more`: how late they are besides.
  for (const Nanos more : {Nanos{0}, 20 * kMillisecond}) {
    StragglerWatch watch({}, {0, 0, 1, 1});
    Nanos now = kSecond;
    std::optional<StragglerNotice> named;
    for (std::uint64_t step = 1; step <= 100; ++step) {
      now += 10 * kMillisecond;
      const Nanos others = now;
      for (const int rank : {0, 1}) watch.announced(rank, others);
      now += 30 * kMillisecond;
      for (const int rank : {2, 3}) watch.announced(rank, now);
      for (const int rank : {2, 3}) watch.apart(rank, now);
      now += more + 100 * kMicrosecond;
      const Nanos typical = now;
      watch.announced(2, now);
      watch.apart(2, now + 50 * kMicrosecond);  // while it waits: that excuses nobody
      now += 100 * kMicrosecond;
      watch.announced(3, now);
      watch.complete(3, now, Awaited::kElsewhere, {others, others, typical, now});
      if (const auto notice = watch.end_step(step, now).host) named = notice;
    }
    CHECK_EQ(named.has_value(), more > 0);
    CHECK_EQ(watch.hosts().lately()[1].late, more + 100 * kMicrosecond);
  }
}

TEST(the_sentences_name_rank_host_cost_and_steps) {
  StragglerNotice notice;
  notice.who = 3;
  notice.late = 31 * kMillisecond;
  notice.share = 0.24;
  notice.since_step = 105;
  notice.until_step = 170;
  notice.since = monotonic_now();
  notice.times = 36;
  notice.looked_at = 40;
  const std::string begins = straggler_text(notice, "rank 3 (host b, pid 4711)", "the other ranks");
  for (const char* part : {"rank 3 (host b, pid 4711)", "31 ms a step", "24 % of the step",
                           "36 of the last 40 steps", "since step 105 at "}) {
    CHECK_MSG(begins.find(part) != std::string::npos, begins);
  }
  const std::string host = straggler_text(notice, "host b (ranks 2,3)", "the other hosts");
  CHECK_MSG(host.starts_with(
                "host b (ranks 2,3) holds the others up in 90 % of the steps: the other hosts "
                "wait for it 31 ms a step, 24 % of the step (median; "),
            host);
  notice.begins = false;
  const std::string ends = straggler_text(notice, "rank 3 (host b, pid 4711)", "the other ranks");
  CHECK_MSG(ends.find("no longer holds the others up") != std::string::npos, ends);
  CHECK_MSG(ends.find("from step 105 to step 170") != std::string::npos, ends);
}

}  // namespace
}  // namespace hvdtune::testing::test_straggler
