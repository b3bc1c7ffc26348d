// Ranks that join, and process sets that come and go while the job runs.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"

namespace hvdtune::testing::test_membership {
namespace {

/// A finished change of membership: what it tells.
std::int64_t number_of(Engine& engine, std::int64_t handle) {
  return finish(engine, handle)->numbers.at(0);
}

std::string refusal(Engine& engine, std::int64_t handle) {
  const Status status = failure(engine, handle);
  CHECK(status.kind == ErrorKind::kInvalidArgument);
  return status.text;
}

/// Sum over a process set of (rank + 1), in place.
float sum_in(Engine& engine, std::uint32_t set, const std::string& name, int rank,
             std::size_t elements = 100) {
  std::vector<float> data(elements, static_cast<float>(rank + 1));
  Submission submission = in_place(OpKind::kAllreduce, name, data);
  submission.request.process_set = set;
  finish(engine, engine.submit(std::move(submission)));
  CHECK(std::all_of(data.begin(), data.end(), [&](float x) { return x == data[0]; }));
  return data[0];
}

}  // namespace

TEST(ranks_that_joined_contribute_zeros_until_all_have) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::uint32_t capacity : {0U, 2U, 1024U}) {
      run_job(
          size,
          [&](int rank, Engine& engine) {
            // Twice: the second time, slots that ranks learnt while joined are used by all.
            for (int epoch = 0; epoch < 3; ++epoch) {
              // In each epoch another rank has the fewest batches.
              const int batches = 1 + (rank + epoch) % size;
              for (int batch = 0; batch < batches; ++batch) {
                float expected = 0;
                for (int other = 0; other < size; ++other) {
                  if (1 + (other + epoch) % size > batch) expected += static_cast<float>(other + 1);
                }
                for (const char* name : {"a", "b", "c"}) {
                  CHECK_EQ(sum_in(engine, 0, name, rank), expected);
                }
                const std::string once = "only in batch " + std::to_string(batch);
                CHECK_EQ(sum_in(engine, 0, once, rank), expected);
              }
              const std::int64_t last = number_of(engine, engine.join());
              CHECK(last >= 0 && last < size);
              std::vector<std::int64_t> agreed{last};
              finish(engine, engine.submit(in_place(OpKind::kAllreduce, "last", agreed)));
              CHECK_EQ(agreed[0], last * size);
            }
          },
          [&](EngineOptions& options) { options.coordinator.cache_capacity = capacity; });
    }
  }
}

TEST(what_a_rank_submitted_before_it_joined_counts) {
  std::atomic<bool> refused{false};
  run_job(3, [&](int rank, Engine& engine) {
    std::vector<float> early(10, 1.0F);
    const auto pending = engine.submit(in_place(OpKind::kAllreduce, "early", early));
    if (rank == 0) {
      const auto joined = engine.join();
      CHECK_THROWS_WITH(engine.submit(in_place(OpKind::kAllreduce, "late", early)), Error,
                        "has joined");
      CHECK_THROWS_WITH(engine.join(), Error, "has joined");
      refused = true;
      finish(engine, joined);
    } else {
      CHECK_EQ(sum_in(engine, 0, "later", rank), 5.0F);
      // Once all have joined, rank 0 may submit again.
      await(refused);
      finish(engine, engine.join());
    }
    finish(engine, pending);
    CHECK_EQ(early[0], 3.0F);
  });
}

TEST(only_allreduce_goes_on_without_those_who_joined) {
  run_job(3, [](int rank, Engine& engine) {
    std::vector<std::int32_t> data{1, 2, 3};
    const auto everybody = [&] {
      const auto gathered =
          finish(engine, engine.submit(allocating(OpKind::kAllgather, "g", data)));
      CHECK_EQ(values_of<std::int32_t>(gathered->outputs[0]).size(), 9U);
    };
    everybody();
    if (rank != 2) {
      // The name has a slot; it must still have one and the same afterwards.
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Status status =
            failure(engine, engine.submit(allocating(OpKind::kAllgather, "g", data)));
        CHECK(status.kind == ErrorKind::kMismatch || rank > 2);
        check_contains(status.text, "ALLGATHER is not supported with Join");
        check_contains(status.text, "rank 2 joined");
        check_contains(failure(engine, engine.submit(in_place(OpKind::kBroadcast, "b", data))).text,
                       "BROADCAST is not supported with Join");
      }
    }
    finish(engine, engine.join());
    everybody();
  });
}

TEST(sets_are_added_used_and_removed_again_and_again) {
  run_job(4, [](int rank, Engine& engine) {
    for (int round = 0; round < 40; ++round) {
      const bool first = rank % 2 == 0;
      CHECK_EQ(number_of(engine, engine.add_process_set({2, 0})), 1);
      CHECK_EQ(number_of(engine, engine.add_process_set({1, 2, 3})), 2);
      CHECK(engine.process_set_ranks(1) == (std::vector<int>{0, 2}));
      for (int repeat = 0; repeat < 3; ++repeat) {
        if (first) CHECK_EQ(sum_in(engine, 1, "x", rank, 20000), 4.0F);
        if (rank != 0) CHECK_EQ(sum_in(engine, 2, "x", rank, 30000), 9.0F);
        CHECK_EQ(sum_in(engine, 0, "x", rank, 50000), 10.0F);
      }
      CHECK_EQ(number_of(engine, engine.remove_process_set(1)), 1);
      // A third set takes the number, with other members, while the second lives on.
      CHECK_EQ(number_of(engine, engine.add_process_set({0, 1, 2})), 1);
      if (rank != 3) CHECK_EQ(sum_in(engine, 1, "x", rank, 10000), 6.0F);
      if (rank != 0) CHECK_EQ(sum_in(engine, 2, "x", rank, 10000), 9.0F);
      finish(engine, engine.remove_process_set(1));
      finish(engine, engine.remove_process_set(2));
      CHECK(engine.process_set_ranks(1).empty());
    }
  });
}

TEST(impossible_sets_are_refused_on_every_rank_and_the_job_goes_on) {
  run_job(3, [](int rank, Engine& engine) {
    const auto refused = [&](const std::vector<std::int32_t>& ranks) {
      return refusal(engine, engine.add_process_set(ranks));
    };
    CHECK_EQ(number_of(engine, engine.add_process_set({0, 1})), 1);
    check_contains(refused({1, 0}), "duplicate process set: [0, 1] is process set 1");
    check_contains(refused({0, 1, 2}), "duplicate process set");
    check_contains(refused({0, 3}), "rank 3 does not exist");
    check_contains(refused({-1, 0}), "rank -1 does not exist; different ranks from 0 to 2");
    check_contains(refused({2, 2}), "rank 2 is given twice");
    check_contains(refused({}), "at least one rank");
    check_contains(refused({rank}), "Mismatched process sets");
    check_contains(refusal(engine, engine.remove_process_set(0)), "does not exist");
    check_contains(refusal(engine, engine.remove_process_set(7)), "does not exist");
    check_contains(refusal(engine, engine.remove_process_set(rank == 0 ? 1 : 2)), "Mismatched");
    if (rank != 2) CHECK_EQ(sum_in(engine, 1, "x", rank), 3.0F);
    CHECK_EQ(sum_in(engine, 0, "x", rank), 6.0F);
  });
}

TEST(as_many_sets_as_there_is_room_for) {
  run_job(8, [](int, Engine& engine) {
    // Subsets of 8 ranks, by their bits; 255 is the whole job.
    int added = 0;
    for (int bits = 1; added < kMaxProcessSets - 1; ++bits, ++added) {
      std::vector<std::int32_t> ranks;
      for (int rank = 0; rank < 8; ++rank) {
        if ((bits >> rank & 1) != 0) ranks.push_back(rank);
      }
      CHECK_EQ(number_of(engine, engine.add_process_set(ranks)), added + 1);
    }
    check_contains(refusal(engine, engine.add_process_set({0, 7})), "as many as can exist");
    finish(engine, engine.remove_process_set(5));
    CHECK_EQ(number_of(engine, engine.add_process_set({0, 7})), 5);
  });
}

TEST(what_waits_in_a_removed_set_fails) {
  run_job(3, [](int rank, Engine& engine) {
    for (int round = 0; round < 10; ++round) {
      finish(engine, engine.add_process_set({0, 1}));
      if (rank != 2) {  // give the name a slot
        sum_in(engine, 1, "x", rank);
        sum_in(engine, 1, "x", rank);
      }
      std::vector<float> data(10, 1.0F);
      std::int64_t lost = 0;
      if (rank == 0) {
        Submission submission = in_place(OpKind::kAllreduce, "x", data);
        submission.request.process_set = 1;
        lost = engine.submit(std::move(submission));
      }
      finish(engine, engine.remove_process_set(1));
      if (rank == 0) {
        const Status status = failure(engine, lost);
        CHECK(status.kind == ErrorKind::kAborted);
        check_contains(status.text, "Process set has been removed");
      }
      Submission late = in_place(OpKind::kAllreduce, "x", data);
      late.request.process_set = 1;
      CHECK_THROWS_WITH(engine.submit(std::move(late)), Error, "does not exist");
    }
  });
}

TEST(a_set_whose_member_is_away_holds_nobody_up) {
  std::atomic<bool> back{false};
  run_job(3, [&](int rank, Engine& engine) {
    finish(engine, engine.add_process_set({0, 1}));
    finish(engine, engine.add_process_set({0, 2}));
    if (rank == 1) await(back);
    std::vector<float> slow(10, 1.0F);
    std::int64_t handle = 0;
    if (rank != 2) {
      Submission submission = in_place(OpKind::kAllreduce, "slow", slow);
      submission.request.process_set = 1;
      handle = engine.submit(std::move(submission));
    }
    if (rank != 1) {
      for (int i = 0; i < 100; ++i) CHECK_EQ(sum_in(engine, 2, "x", rank), 4.0F);
      if (rank == 0) back = true;
    }
    if (rank != 2) finish(engine, handle);
    CHECK_EQ(slow[0], rank != 2 ? 2.0F : 1.0F);
    // The first to go would end the job for the others.
    CHECK_EQ(sum_in(engine, 0, "end", rank), 6.0F);
  });
}

TEST(threads_of_every_rank_use_overlapping_sets_at_once) {
  run_job(4, [](int rank, Engine& engine) {
    const std::vector<std::vector<std::int32_t>> sets = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 1, 2}};
    for (const auto& ranks : sets) finish(engine, engine.add_process_set(ranks));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::uint32_t set = 0; set <= sets.size(); ++set) {
      const std::vector<int> ranks = engine.process_set_ranks(set);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      threads.emplace_back([&, set, ranks] {
        float expected = 0;
        for (const int member : ranks) expected += static_cast<float>(member + 1);
        try {
          for (int i = 0; i < 60; ++i) {
            const auto elements = static_cast<std::size_t>(1 + i * 997);
            if (sum_in(engine, set, "t" + std::to_string(i % 7), rank, elements) != expected) {
              ++wrong;
            }
          }
        } catch (const std::exception&) {
          ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
    // The first to go would end the job for the others.
    CHECK_EQ(sum_in(engine, 0, "end", rank), 10.0F);
  });
}

}  // namespace hvdtune::testing::test_membership
