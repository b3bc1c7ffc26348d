#include "observe/straggler.h"

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace hvdtune {
namespace {

constexpr Nanos kTensorGap = 100 * kMicrosecond;

/// A job whose steps last `compute` plus what the latest rank adds to it.
struct Job {
  Job(int size, StragglerOptions options = {}) : ranks(size), watch(options, size) {}

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
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      int last = 0;
      for (int rank = 1; rank < ranks; ++rank) {
        if (late[static_cast<std::size_t>(rank)] > late[static_cast<std::size_t>(last)]) {
          last = rank;
        }
      }
      end = now + compute + late[static_cast<std::size_t>(last)] + tensor * kTensorGap;
      watch.complete(last, end, true);
    }
    now = end;
    return watch.end_step(++number, now);
  }

  int ranks;
  StragglerWatch watch;
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
  CHECK_EQ(named->rank, 2);
  CHECK_EQ(named->since_step, std::uint64_t{31});
  // It is late for all ten tensors by 30 ms, and costs 30 ms, not 300.
  CHECK_EQ(named->late, 30 * kMillisecond);
  CHECK(named->share > 0.22 && named->share < 0.24);
  CHECK_EQ(job.watch.named(), 2);
  CHECK_EQ(job.watch.lately()[2].late, 30 * kMillisecond);
  CHECK(job.watch.lately()[2].last_share > 0.99);
  CHECK_EQ(job.watch.lately()[1].late, Nanos{0});
}

TEST(its_end_is_told_once) {
  Job job(3);
  for (int i = 0; i < 100; ++i) job.step({0, 20 * kMillisecond, 0});
  CHECK_EQ(job.watch.named(), 1);
  int ends = 0;
  for (int i = 0; i < 100; ++i) {
    const auto notice = job.step({0, 0, 0});
    if (!notice) continue;
    ++ends;
    CHECK(!notice->begins);
    CHECK_EQ(notice->rank, 1);
    CHECK_EQ(notice->until_step, std::uint64_t{100});
  }
  CHECK_EQ(ends, 1);
  CHECK_EQ(job.watch.named(), -1);
}

TEST(one_that_is_late_now_and_then_does_not_fill_the_log) {
  Job job(2);
  int begins = 0;
  int ends = 0;
  const auto spell = [&](int steps, Nanos late) {
    for (int i = 0; i < steps; ++i) {
      const auto notice = job.step({0, late}, 2 * kMillisecond);
      if (notice) ++(notice->begins ? begins : ends);
    }
  };
  for (int times = 0; times < 50; ++times) {
    spell(150, kMillisecond);
    spell(60, 0);
  }
  CHECK_EQ(begins, 1);
  CHECK_EQ(ends, 1);
  // It is for good now; and after that, the first spell is news again.
  spell(2000, kMillisecond);
  spell(60, 0);
  CHECK_EQ(begins, 2);
  CHECK_EQ(ends, 2);
  spell(60, kMillisecond);
  CHECK_EQ(begins, 3);
}

TEST(a_spell_that_waited_to_be_told_is_told_from_its_beginning) {
  Job job(3);
  std::optional<StragglerNotice> told;
  const auto spell = [&](int steps, std::vector<Nanos> late) {
    told.reset();
    for (int i = 0; i < steps; ++i) {
      const auto notice = job.step(late, 2 * kMillisecond);
      if (notice && notice->begins) told = notice;
    }
  };
  for (const int steps : {100, 400, 800}) {
    spell(steps, {0, kMillisecond, 0});
    CHECK(told.has_value());
    spell(60, {0, 0, 0});
  }
  const std::uint64_t before = job.number;
  spell(1500, {0, kMillisecond, 0});
  CHECK(told.has_value());
  CHECK_EQ(told->since_step, before + 1);
  // Other ranks have not been late, and need not wait.
  spell(60, {0, 0, 0});
  spell(60, {0, 0, kMillisecond});
  CHECK(told.has_value());
  CHECK_EQ(told->rank, 2);
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
  StragglerWatch watch({}, 2);
  Nanos now = kSecond;
  std::optional<StragglerNotice> named;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    for (int point = 0; point < 10; ++point) {  // all wait for each other at each of them
      now += 10 * kMillisecond;
      watch.announced(0, now);
      now += 3 * kMillisecond;
      watch.announced(1, now);
      watch.complete(1, now, true);
    }
    if (const auto notice = watch.end_step(step, now)) named = notice;
  }
  CHECK(named.has_value());
  CHECK_EQ(named->late, 30 * kMillisecond);
}

TEST(work_of_a_process_set_is_not_lateness) {
  // Rank 1 alone is in a set: four operations of it, 5 ms each, before what all ranks do. `more`:
  // how late it is besides.
  for (const Nanos more : {Nanos{0}, 20 * kMillisecond}) {
    StragglerWatch watch({}, 3);
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
      watch.complete(1, now, true);
      if (const auto notice = watch.end_step(step, now)) named = notice;
    }
    CHECK_EQ(named.has_value(), more > 0);
    CHECK_EQ(watch.lately()[1].late, more + 100 * kMicrosecond);
  }
}

TEST(work_of_a_process_set_excuses_nobody_else) {
  StragglerWatch watch({}, 3);
  Nanos now = kSecond;
  std::optional<StragglerNotice> named;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    now += 10 * kMillisecond;
    watch.announced(0, now);
    watch.announced(1, now);
    watch.apart(1, now + 15 * kMillisecond);  // it goes on with its own while it waits
    now += 20 * kMillisecond;
    watch.announced(2, now);
    watch.complete(2, now, true);
    if (const auto notice = watch.end_step(step, now)) named = notice;
  }
  CHECK(named.has_value());
  CHECK_EQ(named->rank, 2);
  CHECK_EQ(named->late, 20 * kMillisecond);
}

TEST(what_nobody_waits_for_costs_nothing) {
  StragglerWatch watch({}, 2);
  Nanos now = kSecond;
  for (std::uint64_t step = 1; step <= 200; ++step) {
    watch.announced(0, now);
    watch.announced(1, now + 50 * kMillisecond);
    watch.complete(1, now + 50 * kMillisecond, false);
    now += 60 * kMillisecond;
    CHECK(!watch.end_step(step, now).has_value());
  }
}

TEST(steps_that_never_end_take_no_more_memory) {
  StragglerWatch watch({}, 2);
  for (Nanos now = 1; now < 100'000; ++now) {
    watch.announced(0, now);
    watch.apart(1, now);
    watch.complete(0, now, true);
  }
  CHECK(!watch.end_step(1, 100'000).has_value());
}

TEST(the_sentences_name_rank_host_cost_and_steps) {
  StragglerNotice notice;
  notice.rank = 3;
  notice.late = 31 * kMillisecond;
  notice.share = 0.24;
  notice.since_step = 105;
  notice.until_step = 170;
  notice.since = monotonic_now();
  notice.times = 36;
  notice.looked_at = 40;
  const std::string begins = straggler_text(notice, "host b, pid 4711");
  for (const char* part : {"rank 3 (host b, pid 4711)", "31 ms a step", "24 % of the step",
                           "36 of the last 40 steps", "since step 105 at "}) {
    CHECK_MSG(begins.find(part) != std::string::npos, begins);
  }
  notice.begins = false;
  const std::string ends = straggler_text(notice, "host b, pid 4711");
  CHECK_MSG(ends.find("no longer late") != std::string::npos, ends);
  CHECK_MSG(ends.find("from step 105 to step 170") != std::string::npos, ends);
}

}  // namespace
}  // namespace hvdtune
