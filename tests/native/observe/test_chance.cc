// What chance gives, and who is named in spite of it: equal ranks are not, however they jitter.
#include "observe/stragglers/chance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "observe/stragglers/blame.h"

namespace hvdtune::testing::test_chance {
namespace {

/// Steps of 100 ms and what the latest rank adds, of which it alone costs what the second latest
/// does not.
struct Job {
  explicit Job(int ranks) : blame({}, static_cast<std::size_t>(ranks)) {}

  std::optional<StragglerNotice> step(const std::vector<Nanos>& late) {
    std::vector<Nanos> ordered = late;
    std::sort(ordered.begin(), ordered.end());
    const auto last = std::max_element(late.begin(), late.end()) - late.begin();
    std::vector<Nanos> cost(late.size(), 0);
    cost[static_cast<std::size_t>(last)] = ordered.back() - ordered[ordered.size() - 2];
    const Nanos duration = 100 * kMillisecond + ordered.back();
    now += duration;
    return blame.end_step(++number, now, duration, cost);
  }

  Blame blame;
  Nanos now = kSecond;
  std::uint64_t number = 0;
};

constexpr int kExponential = 0, kLogNormal = 1, kPauses = 2, kPareto = 3;

/// How much later each of `size` equal ranks is in a step.
std::vector<Nanos> jitter(std::mt19937& random, int size, int kind) {
  std::vector<Nanos> late;
  for (int rank = 0; rank < size; ++rank) {
    double ms = 0;
    if (kind == kExponential) ms = std::exponential_distribution(1 / 8.0)(random);
    if (kind == kLogNormal) ms = std::lognormal_distribution(1.0, 1.5)(random);
    if (kind == kPauses) ms = std::bernoulli_distribution(0.1)(random) ? 80 : 1;
    if (kind == kPareto) {
      const double left = 1 - std::uniform_real_distribution()(random);
      ms = std::min(2 * std::pow(left, -0.8), 1e4);
    }
    late.push_back(static_cast<Nanos>(ms * kMillisecond));
  }
  return late;
}

TEST(equal_ranks_are_not_named_whatever_their_jitter) {
  std::mt19937 random(11);
  for (const int size : {2, 3, 4, 8}) {
    for (const int kind : {kExponential, kLogNormal, kPauses, kPareto}) {
      Job job(size);
      for (int i = 0; i < 500 * 40; ++i) {  // 500 windows
        CHECK(!job.step(jitter(random, size, kind)).has_value());
      }
    }
  }
}

TEST(a_rank_late_by_a_tenth_of_the_step_is_named_in_spite_of_jitter) {
  for (const int size : {2, 4, 8}) {
    // Of eight ranks the slowest of the seven others is 21 ms behind, too, and often the last.
    const Nanos slow = (size < 8 ? 15 : 40) * kMillisecond;
    for (const int kind : {kExponential, kLogNormal}) {
      for (unsigned seed = 0; seed < 5; ++seed) {
        std::mt19937 random(seed);
        Job job(size);
        for (int i = 0; i < 200; ++i) CHECK(!job.step(jitter(random, size, kind)).has_value());
        std::optional<StragglerNotice> named;
        for (int i = 0; i < 400 && !named; ++i) {
          std::vector<Nanos> late = jitter(random, size, kind);
          late[1] += slow;
          named = job.step(late);
        }
        CHECK(named.has_value());
        CHECK_EQ(named->who, 1);
        CHECK(named->since_step > 150);
        CHECK(named->late >= 5 * kMillisecond);
      }
    }
  }
}

TEST(one_that_holds_up_six_of_ten_steps_by_hardly_anything_is_not_named) {
  Job job(4);
  for (int i = 0; i < 400; ++i) {
    const Nanos little = (i % 10 < 6 ? 3 : 0) * kMillisecond;
    CHECK(!job.step({0, little, 0, 0}).has_value());
  }
}

TEST(what_chance_gives) {
  // Two equal ones: ten steps of the same one are (1/2)^10, times two looks.
  const std::vector<Charge> ten(10, {1, kMillisecond});
  const double by_chance = caused_by_chance(ten, 1, 2);
  CHECK(by_chance > 0.9 * 2 / 1024 && by_chance < 1.2 * 2 / 1024);
  CHECK_EQ(caused_by_chance(ten, 0, 2), 1.0);
  // One long delay proves nothing, however long; ten of them do.
  std::vector<Charge> steps;
  for (int i = 0; i < 30; ++i) steps.push_back({i % 4, kMillisecond});
  steps.push_back({2, 100 * kSecond});
  CHECK(caused_by_chance(steps, 2, 4) > 0.5);
  for (int i = 0; i < 9; ++i) steps.push_back({2, 100 * kSecond});
  CHECK(caused_by_chance(steps, 2, 4) < 1e-4);
  CHECK_EQ(caused_by_chance({}, 0, 4), 1.0);
  CHECK_EQ(caused_by_chance(ten, 1, 1), 1.0);
}

}  // namespace
}  // namespace hvdtune::testing::test_chance
