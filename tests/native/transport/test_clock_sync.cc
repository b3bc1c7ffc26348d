#include "transport/control/clock_sync.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"

namespace hvdtune::testing::test_clock_sync {
namespace {

/// Two ClockSyncs whose messages take random times on a simulated way, with clocks that differ.
struct Pair {
  Nanos truth = 0;  // the real time
  Nanos shift = 0;  // rank 0's clock minus the other's, at truth 0
  double drift = 0;
  std::mt19937 random{3};
  std::deque<std::string> to_reference;
  std::deque<std::string> back;

  [[nodiscard]] Nanos offset_at(Nanos time) const {
    return shift + static_cast<Nanos>(drift * static_cast<double>(time));
  }
  void travel() { truth += 20 * kMicrosecond + static_cast<Nanos>(random() % 300) * kMicrosecond; }

  ClockSync reference{true, [](std::string_view) { return false; },
                      [this] { return truth + offset_at(truth); }};
  ClockSync other{false,
                  [this](std::string_view message) {
                    to_reference.emplace_back(message);
                    return true;
                  },
                  [this] { return truth; }};

  void burst(Nanos now) {
    other.turn(now);
    while (!to_reference.empty()) {
      const std::string question = to_reference.front();
      to_reference.pop_front();
      travel();
      CHECK(reference.receive(question, [this](std::string_view message) {
        back.emplace_back(message);
        return true;
      }));
      travel();
      const std::string answer = back.front();
      back.pop_front();
      CHECK(other.receive(answer, [](std::string_view) { return false; }));
    }
  }
};

TEST(the_truth_lies_within_the_bound_whatever_the_ways_take) {
  for (const Nanos shift : {Nanos{0}, -7 * kSecond, 3 * kSecond + 12345}) {
    Pair pair;
    pair.shift = shift;
    pair.other.start();
    pair.burst(monotonic_now());
    const auto readings = pair.other.readings();
    CHECK_EQ(readings.size(), std::size_t{1});
    const ClockReading& one = readings.front();
    CHECK(one.bound < 160 * kMicrosecond);  // the best of many: far below the worst way
    CHECK_MSG(std::abs(one.offset - shift) <= one.bound, one.offset << " ± " << one.bound);
  }
}

TEST(readings_follow_the_drift) {
  Pair pair;
  pair.shift = kSecond;
  pair.drift = 40e-6;
  pair.other.start();
  Nanos now = monotonic_now();
  for (int i = 0; i < 6; ++i) {
    pair.burst(now);
    now = pair.other.turn(now);
    pair.truth += 10 * kSecond;
  }
  const auto readings = pair.other.readings();
  CHECK_EQ(readings.size(), std::size_t{6});
  for (const ClockReading& one : readings) {
    CHECK(std::abs(one.offset - pair.offset_at(one.local)) <= one.bound);
    CHECK(one.bound < 160 * kMicrosecond);
  }
  CHECK(readings.back().offset - readings.front().offset > kMillisecond);  // 50 s of 40 us
}

TEST(a_reference_that_does_not_answer_is_given_up) {
  int asked = 0;
  ClockSync alone(false, [&](std::string_view) { return ++asked > 0; });
  alone.start();
  const Nanos now = monotonic_now();
  const Nanos gives_up = alone.turn(now);
  CHECK(gives_up > now);
  CHECK(alone.pending());
  CHECK(alone.turn(gives_up) > gives_up);  // the next period
  CHECK(!alone.pending());
  CHECK_EQ(asked, 1);
  CHECK(alone.readings().empty());
}

TEST(nonsense_does_no_harm) {
  ClockSync sync(false, [](std::string_view) { return true; });
  const auto nobody = [](std::string_view) { return false; };
  CHECK(!sync.receive("", nobody));
  CHECK(!sync.receive("x", nobody));
  CHECK(sync.receive("C", nobody));
  CHECK(sync.receive(std::string(200, 'C'), nobody));
  CHECK(sync.readings().empty());
}

TEST(ranks_with_shifted_clocks_find_their_offsets) {
  // By the real connections, between engines whose clocks are shifted on purpose.
  const auto shift_of = [](int rank) { return rank * 250 * kMillisecond - 3 * kSecond; };
  run_job(
      4,
      [&](int rank, Engine& engine) {
        engine.start_clock();
        CHECK(engine.stop_clock(monotonic_now() + kPatience));
        const auto readings = engine.clock_readings(0);
        CHECK(!readings.empty());
        const Nanos truth = shift_of(0) - shift_of(rank);
        for (const ClockReading& one : readings) {
          CHECK_MSG(std::abs(one.offset - truth) <= one.bound,
                    "rank " << rank << ": " << one.offset << " ± " << one.bound);
          CHECK(rank == 0 || one.bound > 0);
        }
        CHECK(engine.clock_readings(readings.size()).empty());
        // Nobody may go while others still ask rank 0.
        std::vector<float> data(3, 1);
        finish(engine, engine.submit(in_place(OpKind::kAllreduce, "end", data)));
      },
      [&](EngineOptions& options) { options.clock_shift = shift_of(options.meeting.rank); });
}

}  // namespace
}  // namespace hvdtune::testing::test_clock_sync
