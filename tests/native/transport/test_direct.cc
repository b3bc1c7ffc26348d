// Small allreduces that go past the coordinator, and everything that makes them go by it after all.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"
#include "transport/arena/slot_round.h"

namespace hvdtune::testing::test_direct {
namespace {

using State = SlotRound::State;

std::int64_t reduce(Engine& engine, std::vector<float>& data, const std::string& name,
                    bool blocking, std::uint32_t set = 0) {
  Submission submission = in_place(OpKind::kAllreduce, name, data);
  submission.request.process_set = set;
  return blocking ? engine.submit_blocking(std::move(submission))
                  : engine.submit(std::move(submission));
}

/// Blocking, of one element: the sum over ranks of `value`.
float sum_of(Engine& engine, float value, const std::string& name, std::uint32_t set = 0) {
  std::vector<float> data{value};
  finish(engine, reduce(engine, data, name, true, set));
  return data[0];
}

}  // namespace

TEST(a_round_is_direct_for_all_or_announced_by_all) {
  SlotRound round;
  CHECK(round.arrive_direct(3, 0).accepted);
  CHECK(round.arrive_direct(3, 0).accepted);
  CHECK(round.state(0) == State::kOpen);
  const auto last = round.arrive_direct(3, 0);
  CHECK(last.accepted && last.last);
  CHECK(round.state(0) == State::kComplete);
  CHECK_EQ(round.round(), 1U);
  // Whoever looked up the round before it was over has published its data in the wrong place.
  CHECK(!round.arrive_direct(3, 0).accepted);

  CHECK(round.arrive_direct(3, 1).accepted);
  CHECK(!round.announce(3).last);
  CHECK(round.state(1) == State::kOverruled);
  CHECK(!round.arrive_direct(3, 1).accepted);  // the third must announce
  CHECK(!round.announce(3).last);
  const auto changed = round.change_to_announced(1, 3);
  CHECK(changed.accepted && changed.last);
  CHECK_EQ(round.round(), 2U);
  CHECK(!round.change_to_announced(1, 3).accepted);  // too late

  CHECK(round.arrive_direct(3, 2).accepted);
  CHECK(round.withdraw(2).accepted);
  CHECK(!round.arrive_direct(3, 2).accepted);
  CHECK(!round.announce(3, 2).last);  // two who have joined
  CHECK(round.announce(3).last);
  round.reset();
  CHECK_EQ(round.round(), 5U);  // counts on: nothing that was kept for a round before is in use
  CHECK(round.arrive_direct(3, 5).accepted);
}

TEST(blocking_and_other_submissions_meet_in_any_mixture) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::uint32_t capacity : {0U, 3U, 1024U}) {  // 3: slots are evicted all the time
      run_job(
          size,
          [&](int rank, Engine& engine) {
            std::mt19937_64 generator(static_cast<std::uint64_t>(rank) + capacity);
            const float all = static_cast<float>(size * (size + 1)) / 2;
            for (int i = 0; i < 240; ++i) {
              // Next to the slot, on the stage, and too large for either.
              constexpr std::size_t kSizes[] = {1, 20, 1000, 1500, 5000, 16000, 100000, 300000};
              const std::size_t elements = kSizes[i % 8] + static_cast<std::size_t>(i % 6);
              std::vector<float> data(elements, static_cast<float>((rank + 1) * (i + 1)));
              const std::string name = "t" + std::to_string(i % 6);
              // Each rank decides for itself; now and then one comes late.
              if (generator() % 50 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(400));
              finish(engine, reduce(engine, data, name, generator() % 4 != 0));
              for (const float x : data) CHECK_EQ(x, all * static_cast<float>(i + 1));
            }
          },
          [&](EngineOptions& options) { options.coordinator.cache_capacity = capacity; });
    }
  }
}

/// Rounds of `count` floats until every rank has seen one that went past the coordinator: an
/// operation that was announced has a ticket.
void check_direct_rounds(Engine& engine, int size, std::size_t count) {
  bool seen = false;
  for (int round = 0; round < 100000; ++round) {
    std::vector<float> data(count, seen ? 1.0F : 0.0F);
    const OperationPtr operation = finish(engine, reduce(engine, data, "direct", true));
    seen = seen || operation->ticket == 0;
    if (data[0] == static_cast<float>(size)) return;
  }
  CHECK_MSG(false, "no round was direct");
}

TEST(rounds_are_direct_where_everybody_waits) {
  run_job(3, [](int, Engine& engine) { check_direct_rounds(engine, 3, 1); });
}

TEST(rounds_on_the_stage_are_direct_too) {
  for (const int size : {2, 3}) {
    run_job(size, [&](int, Engine& engine) { check_direct_rounds(engine, size, 4000); });
  }
}

/// As on a machine that is larger than the one the tests run on.
TEST(a_cpu_for_every_rank) {
  for (const int size : {2, 3, 5, 8}) {
    run_job(
        size,
        [&](int, Engine& engine) {
          for (const std::size_t count : {1, 1000, 4000, 60000, 300000}) {
            for (int round = 0; round < 3; ++round) {
              std::vector<float> data(count, 1.0F);
              finish(engine, reduce(engine, data, "of " + std::to_string(count), true));
              CHECK(data.front() == static_cast<float>(size) && data.back() == data.front());
            }
          }
        },
        [](EngineOptions& options) { options.meeting.cpus = 64; });
  }
}

TEST(every_type_and_operator_as_by_the_coordinator) {
  run_job(3, [](int rank, Engine& engine) {
    for (const ReduceOp op :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (int code = 0; code < kDTypeCount; ++code) {
        const auto dtype = static_cast<DType>(code);
        if (op == ReduceOp::kAverage && dtype == DType::kBool) continue;
        const std::string name = "t" + std::to_string(code) + std::to_string(static_cast<int>(op));
        constexpr std::size_t kSizes[] = {kDirectLine, kDirectBytes, 4 * kDirectBytes};
        const std::size_t bytes = kSizes[(code + static_cast<int>(op)) % 3];
        std::vector<std::vector<unsigned char>> results;
        for (int round = 0; round < 4; ++round) {  // the first two by the coordinator
          std::vector<unsigned char> data(bytes);
          for (std::size_t i = 0; i < data.size(); ++i) {
            data[i] =
                static_cast<unsigned char>((i * 37 + static_cast<std::size_t>(rank) * 5) % 64);
            if (dtype == DType::kBool) data[i] %= 2;
          }
          Submission submission;
          submission.request.name = name;
          submission.request.reduce_op = op;
          submission.request.prescale = dtype == DType::kBool ? 1.0 : 0.5;
          submission.request.postscale = dtype == DType::kBool ? 1.0 : 3.0;
          submission.request.tensors = {
              {dtype, {static_cast<std::int64_t>(bytes / dtype_size(dtype))}}};
          submission.memory = {{data.data(), data.data()}};
          finish(engine, round < 2 ? engine.submit(std::move(submission))
                                   : engine.submit_blocking(std::move(submission)));
          results.push_back(data);
        }
        for (const auto& result : results) {
          CHECK_MSG(result == results.front(), dtype_name(dtype)
                                                   << " operator " << static_cast<int>(op));
        }
      }
    }
  });
}

TEST(ranks_that_disagree_learn_it_although_some_wait_directly) {
  run_job(3, [](int rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      CHECK_EQ(sum_of(engine, 1, "x"), 3.0F);
      std::vector<float> data(rank == round % 3 ? 2 : 1, 1.0F);
      const Status status = failure(engine, reduce(engine, data, "x", true));
      CHECK(status.kind == ErrorKind::kMismatch);
      check_contains(status.text, "Mismatched ALLREDUCE tensor shapes");
    }
    CHECK_EQ(sum_of(engine, 1, "x"), 3.0F);
  });
}

TEST(joining_overrules_direct_rounds) {
  run_job(3, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 10; ++epoch) {
      for (int i = 0; i < 5; ++i) CHECK_EQ(sum_of(engine, 1, "x"), 3.0F);
      for (int i = 0; i < (rank + epoch) % 3; ++i) {
        const float sum = sum_of(engine, 1, "x");
        CHECK(sum == 1.0F || sum == 2.0F);
      }
      finish(engine, engine.join());
    }
  });
}

TEST(process_sets_and_threads_each_have_rounds_of_their_own) {
  run_job(
      4,
      [](int rank, Engine& engine) {
        std::vector<std::thread> threads;
        std::atomic<int> wrong{0};
        for (std::uint32_t set = 0; set < 4; ++set) {
          const std::vector<int> ranks = engine.process_set_ranks(set);
          if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
          threads.emplace_back([&, set, ranks] {
            float expected = 0;
            for (const int member : ranks) expected += static_cast<float>(member + 1);
            try {
              for (int i = 0; i < 300; ++i) {
                if (sum_of(engine, static_cast<float>(rank + 1), "x", set) != expected) ++wrong;
              }
            } catch (const std::exception&) {
              ++wrong;
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK_EQ(wrong.load(), 0);
        CHECK_EQ(sum_of(engine, 1, "end"), 4.0F);
      },
      [](EngineOptions& options) { options.process_sets = {{0, 1}, {1, 2, 3}, {0, 3}}; });
}

TEST(a_set_of_one_rank_reduces_any_length_by_itself) {
  run_job(
      3,
      [](int rank, Engine& engine) {
        for (const std::size_t count : {2000, 100000, 200000, 300000}) {
          for (int round = 0; round < 4; ++round) {
            if (rank == 0) {
              std::vector<float> data(count, 3.0F);
              finish(engine, reduce(engine, data, "of " + std::to_string(count), true, 1));
              CHECK(data == std::vector<float>(count, 3.0F));
            }
            CHECK_EQ(sum_of(engine, 1, "all"), 3.0F);
          }
        }
      },
      [](EngineOptions& options) { options.process_sets = {{0}}; });
}

TEST(a_watched_job_sends_everything_by_the_coordinator) {
  run_job(
      2,
      [](int rank, Engine& engine) {
        for (int i = 0; i < 50; ++i) CHECK_EQ(sum_of(engine, 1, "x"), 2.0F);
        // A step ends when the tensor comes again.
        if (rank == 0) CHECK(engine.steps().read(monotonic_now() + kPatience).size() >= 45);
        CHECK_EQ(sum_of(engine, 1, "end"), 2.0F);
        engine.stop_watching_steps();
        check_direct_rounds(engine, 2, 1);
      },
      [](EngineOptions& options) { options.watch_steps = true; });
}

TEST(a_rank_may_end_the_job_behind_the_last_direct_round) {
  for (int repeat = 0; repeat < 30; ++repeat) {
    run_job(3, [&](int rank, Engine& engine) {
      for (int i = 0; i < 5; ++i) {
        if (i == 4 && rank == repeat % 3) {
          std::this_thread::sleep_for(std::chrono::microseconds(repeat * 5));
        }
        CHECK_EQ(sum_of(engine, 1, "x"), 3.0F);
      }
    });
  }
}

}  // namespace hvdtune::testing::test_direct
