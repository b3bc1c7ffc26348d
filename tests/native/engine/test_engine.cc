#include "engine/engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/operation/results.h"
#include "engine_job.h"
#include "threads.h"

namespace hvdtune::testing::test_engine {
namespace {

/// Runs body(rank) in `size` child processes; returns how each ended (wait status).
std::vector<int> run_processes(int size, const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      try {
        body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    statuses.push_back(status);
  }
  return statuses;
}

}  // namespace

// First, while this process has no other threads: it forks.
TEST(a_killed_rank_ends_the_job_for_all) {
  const std::string endpoint = fresh_endpoint();
  for (const int victim : {0, 1, 2}) {
    const std::string name = endpoint + std::to_string(victim);
    const auto statuses = run_processes(3, [&](int rank) {
      Engine engine(options_of(rank, 3, name));
      std::vector<float> data(1000, 1.0F);
      const auto reduce = [&] {
        try {
          const auto handle = engine.submit(in_place(OpKind::kAllreduce, "x", data));
          CHECK(engine.wait(handle, monotonic_now() + kPatience));
          return engine.take(handle)->status;
        } catch (const Error& error) {  // the death was known before the submission
          return error.status();
        }
      };
      Status status = reduce();
      if (rank == victim) raise(SIGKILL);
      while (status.ok()) status = reduce();
      CHECK(status.kind == ErrorKind::kAborted);
      check_contains(status.text, "rank " + std::to_string(victim) + " (pid ");
      check_contains(status.text, "on here) died");
      CHECK_THROWS_WITH(engine.submit(in_place(OpKind::kAllreduce, "later", data)), Error, "died");
    });
    for (int rank = 0; rank < 3; ++rank) {
      const int status = statuses[static_cast<std::size_t>(rank)];
      if (rank == victim) {
        CHECK(WIFSIGNALED(status));
      } else {
        CHECK_MSG(status == 0, "rank " << rank << " ended with " << status);
      }
    }
  }
}

TEST(tensors_submitted_in_any_order_are_reduced) {
  for (const int size : {1, 2, 3, 5, 8}) {
    constexpr int kTensors = 20;
    constexpr int kRounds = 6;
    run_job(size, [&](int rank, Engine& engine) {
      std::mt19937_64 own(static_cast<std::uint64_t>(rank));
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::vector<std::int32_t>> tensors;
        std::vector<int> order;
        for (int t = 0; t < kTensors; ++t) {
          tensors.emplace_back(static_cast<std::size_t>(t * t * 7), rank * 100 + t + round);
          order.push_back(t);
        }
        std::shuffle(order.begin(), order.end(), own);
        std::vector<std::int64_t> handles(kTensors);
        for (const int t : order) {
          const auto at = static_cast<std::size_t>(t);
          handles[at] =
              engine.submit(in_place(OpKind::kAllreduce, "t" + std::to_string(t), tensors[at]));
        }
        std::shuffle(order.begin(), order.end(), own);
        for (const int t : order) {
          const auto at = static_cast<std::size_t>(t);
          finish(engine, handles[at]);
          const std::int32_t expected = 100 * size * (size - 1) / 2 + size * (t + round);
          for (const std::int32_t value : tensors[at]) CHECK_EQ(value, expected);
        }
      }
    });
  }
}

TEST(more_tensors_than_the_cache_holds) {
  for (const std::uint32_t capacity : {0U, 1U, 3U}) {
    run_job(
        3,
        [&](int rank, Engine& engine) {
          std::mt19937_64 own(static_cast<std::uint64_t>(rank));
          for (int round = 0; round < 40; ++round) {
            std::vector<std::vector<float>> tensors(8, std::vector<float>(10, 1.0F));
            std::vector<std::size_t> order{0, 1, 2, 3, 4, 5, 6, 7};
            std::shuffle(order.begin(), order.end(), own);
            std::vector<std::int64_t> handles;
            for (const std::size_t t : order) {
              handles.push_back(
                  engine.submit(in_place(OpKind::kAllreduce, "t" + std::to_string(t), tensors[t])));
            }
            for (const std::int64_t handle : handles) finish(engine, handle);
            for (const auto& tensor : tensors) CHECK_EQ(tensor[9], 3.0F);
          }
        },
        [&](EngineOptions& options) { options.coordinator.cache_capacity = capacity; });
  }
}

TEST(all_kinds_of_operations) {
  for (const int size : {1, 2, 3, 5}) {
    run_job(size, [&](int rank, Engine& engine) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::int64_t> gathered(
            static_cast<std::size_t>(rank) + static_cast<std::size_t>(round), rank);
        const auto gather = engine.submit(allocating(OpKind::kAllgather, "gather", gathered));
        std::vector<float> sent(5, static_cast<float>(rank));
        Submission broadcast = in_place(OpKind::kBroadcast, "broadcast", sent);
        broadcast.request.root = size - 1;
        const auto spread = engine.submit(std::move(broadcast));
        // rank r sends r + d rows to rank d
        std::vector<std::int64_t> rows;
        Submission alltoall;
        for (int to = 0; to < size; ++to) {
          alltoall.splits.push_back(rank + to);
          rows.insert(rows.end(), static_cast<std::size_t>(rank) + static_cast<std::size_t>(to),
                      rank * 10 + to);
        }
        const auto splits = alltoall.splits;
        alltoall = allocating(OpKind::kAlltoall, "alltoall", rows);
        alltoall.splits = splits;
        const auto exchange = engine.submit(std::move(alltoall));
        std::vector<std::int64_t> scattered(7, rank + 1);
        const auto scatter =
            engine.submit(allocating(OpKind::kReducescatter, "scatter", scattered));
        Submission barrier;
        barrier.request.kind = OpKind::kBarrier;
        barrier.request.name = "barrier";
        finish(engine, engine.submit(std::move(barrier)));

        std::vector<std::int64_t> expected;
        for (int from = 0; from < size; ++from) {
          expected.insert(expected.end(),
                          static_cast<std::size_t>(from) + static_cast<std::size_t>(round), from);
        }
        const OperationPtr gather_done = finish(engine, gather);
        CHECK(values_of<std::int64_t>(gather_done->outputs[0]) == expected);
        CHECK_EQ(gather_done->outputs[0].shape()[0], static_cast<std::int64_t>(expected.size()));

        finish(engine, spread);
        CHECK(sent == std::vector<float>(5, static_cast<float>(size - 1)));

        expected.clear();
        std::vector<std::int64_t> received;
        for (int from = 0; from < size; ++from) {
          expected.insert(expected.end(),
                          static_cast<std::size_t>(from) + static_cast<std::size_t>(rank),
                          from * 10 + rank);
          received.push_back(from + rank);
        }
        const OperationPtr exchange_done = finish(engine, exchange);
        CHECK(values_of<std::int64_t>(exchange_done->outputs[0]) == expected);
        CHECK(exchange_done->numbers == received);

        const auto mine = static_cast<std::size_t>(scattered_rows(7, rank, size));
        CHECK(values_of<std::int64_t>(finish(engine, scatter)->outputs[0]) ==
              std::vector<std::int64_t>(mine, std::int64_t{size} * (size + 1) / 2));
      }
    });
  }
}

TEST(if_ranks_bring_different_rows_no_rank_uses_its_room_for_equal_ones) {
  run_job(3, [](int rank, Engine& engine) {
    // 1 + 2 + 3 rows would also fill the room of rank 1, which expects 3 times 2.
    std::vector<float> own(static_cast<std::size_t>(rank) + 1, 1.0F);
    std::vector<float> room(3 * own.size());
    Submission gather = allocating(OpKind::kAllgather, "gather", own);
    gather.memory.front().out = room.data();
    const OperationPtr done = finish(engine, engine.submit(std::move(gather)));
    CHECK_EQ(done->outputs.at(0).shape()[0], std::int64_t{6});
  });
}

TEST(a_group_is_one_operation_and_may_mix_dtypes) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> floats(3, static_cast<float>(rank + 1));
    std::vector<std::int32_t> ints(4, rank + 2);
    std::vector<float> more(5, 2.0F);
    Submission group;
    group.request.name = "group";
    group.request.grouped = true;
    group.request.reduce_op = ReduceOp::kAverage;
    group.request.tensors = {spec_of(floats), spec_of(ints), spec_of(more)};
    group.memory = {
        {floats.data(), floats.data()}, {ints.data(), ints.data()}, {more.data(), more.data()}};
    finish(engine, engine.submit(std::move(group)));
    CHECK(floats == std::vector<float>(3, 1.5F));
    CHECK(ints == std::vector<std::int32_t>(4, 2));
    CHECK(more == std::vector<float>(5, 2.0F));
  });
}

TEST(process_sets_work_side_by_side) {
  run_job(
      4,
      [](int rank, Engine& engine) {
        for (int round = 0; round < 20; ++round) {
          const std::uint32_t set = rank % 2 == 0 ? 1 : 2;
          std::vector<std::int32_t> in_set(100, rank);
          std::vector<std::int32_t> global(100, rank);
          Submission mine = in_place(OpKind::kAllreduce, "same name", in_set);
          mine.request.process_set = set;
          const auto first = engine.submit(std::move(mine));
          const auto second = engine.submit(in_place(OpKind::kAllreduce, "same name", global));
          finish(engine, second);
          finish(engine, first);
          CHECK_EQ(in_set[99], set == 1 ? 2 : 4);
          CHECK_EQ(global[99], 6);
        }
        std::vector<std::int32_t> data(1);
        Submission foreign = in_place(OpKind::kAllreduce, "foreign", data);
        foreign.request.process_set = rank % 2 == 0 ? 2 : 1;
        CHECK_THROWS_WITH(engine.submit(std::move(foreign)), Error, "is not a member");
      },
      [](EngineOptions& options) { options.process_sets = {{0, 2}, {1, 3}}; });
}

TEST(disagreeing_ranks_get_one_error_and_can_go_on) {
  run_job(3, [](int rank, Engine& engine) {
    std::vector<float> data(rank == 1 ? 5 : 4, 1.0F);
    const Status status = failure(engine, engine.submit(in_place(OpKind::kAllreduce, "odd", data)));
    CHECK(status.kind == ErrorKind::kMismatch);
    CHECK_EQ(status.text,
             "Mismatched ALLREDUCE tensor shapes for tensor odd: rank 0 has [4], rank 1 has [5].");
    std::vector<float> same(4, 1.0F);
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "odd", same)));
    CHECK_EQ(same[3], 3.0F);
  });
}

TEST(what_is_wrong_on_one_rank_is_refused_there) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> data(6, 1.0F);
    if (rank == 0) {
      Submission broadcast = in_place(OpKind::kBroadcast, "x", data);
      broadcast.request.root = 2;
      CHECK_THROWS_WITH(engine.submit(std::move(broadcast)), Error, "invalid root rank 2");
      Submission alltoall = allocating(OpKind::kAlltoall, "x", data);
      alltoall.splits = {1, 2, 3};
      CHECK_THROWS_WITH(engine.submit(std::move(alltoall)), Error, "entries in splits (3)");
      alltoall = allocating(OpKind::kAlltoall, "x", data);
      alltoall.splits = {4, 3};
      CHECK_THROWS_WITH(engine.submit(std::move(alltoall)), Error, "7 > 6");
      CHECK_THROWS_WITH(engine.submit(in_place(OpKind::kAllreduce, "", data)), Error, "name");
      CHECK_THROWS_WITH(engine.poll(12345), Error, "handle 12345");
      const auto handle = engine.submit(in_place(OpKind::kAllreduce, "x", data));
      CHECK_THROWS_WITH(engine.submit(in_place(OpKind::kAllreduce, "x", data)), Error, "same name");
      CHECK(!engine.wait(handle, monotonic_now()));
      std::vector<float> go(1);
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "go", go)));
      finish(engine, handle);
    } else {
      std::vector<float> go(1);
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "go", go)));
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "x", data)));
    }
    CHECK_EQ(data[5], 2.0F);
  });
}

TEST(shutdown_fails_what_is_in_flight_on_all_ranks) {
  run_job(3, [](int rank, Engine& engine) {
    std::vector<float> data(10, 1.0F);
    if (rank == 1) return engine.shutdown();
    Status status;
    try {
      status = failure(engine, engine.submit(in_place(OpKind::kAllreduce, "x", data)));
    } catch (const Error& error) {  // rank 1 was faster
      status = error.status();
    }
    CHECK(status.kind == ErrorKind::kShutdown);
    check_contains(status.text, "rank 1 shut down");
    CHECK(engine.state().kind == ErrorKind::kShutdown);
  });
}

TEST(a_job_can_follow_another_in_the_same_processes) {
  for (int round = 0; round < 5; ++round) {
    run_job(3, [](int, Engine& engine) {
      std::vector<float> data(10, 1.0F);
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "x", data)));
      CHECK_EQ(data[0], 3.0F);
    });
  }
}

TEST(several_threads_of_a_rank_wait_at_once) {
  constexpr int kThreads = 4;
  run_job(2, [&](int rank, Engine& engine) {
    run_threads(kThreads, [&](int thread) {
      for (int round = 0; round < 50; ++round) {
        std::vector<std::int32_t> data(100, rank + thread);
        finish(engine,
               engine.submit(in_place(OpKind::kAllreduce, "t" + std::to_string(thread), data)));
        CHECK_EQ(data[0], 2 * thread + 1);
      }
    });
  });
}

TEST(a_sleeping_thread_is_woken_when_another_thread_finishes_its_operation) {
  // On rank 0, "last" can end only after the other thread has gone on from "first" to "second".
  constexpr int kRounds = 100;
  run_job(2, [&](int rank, Engine& engine) {
    const auto reduce = [&engine](const std::string& name) {
      std::vector<float> data(10, 1.0F);
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, name, data)));
      CHECK_EQ(data[0], 2.0F);
    };
    run_threads(2, [&](int thread) {
      std::mt19937_64 same_on_all_ranks(11);
      for (int round = 0; round < kRounds; ++round) {
        const auto others = same_on_all_ranks() % 8;
        const std::string suffix = std::to_string(round);
        if (thread == 0) {
          reduce("first" + suffix);
          reduce("second" + suffix);
          if (rank == 1) reduce("last" + suffix);
        } else {
          for (std::uint64_t i = 0; i < others; ++i) reduce("other" + std::to_string(i));
          if (rank == 0) reduce("last" + suffix);
        }
      }
    });
  });
}

TEST(polling_sees_the_end_without_waiting) {
  run_job(2, [&](int, Engine& engine) {
    std::vector<float> data(1000, 1.0F);
    const auto handle = engine.submit(in_place(OpKind::kAllreduce, "x", data));
    while (!engine.poll(handle)) std::this_thread::yield();
    CHECK(engine.take(handle)->status.ok());
    CHECK(engine.take(handle) == nullptr);
    CHECK_EQ(data[999], 2.0F);
  });
}

TEST(settings_change_on_all_ranks_while_running) {
  run_job(3, [](int rank, Engine& engine) {
    for (int round = 0; round < 60; ++round) {
      if (rank == 0 && round % 10 == 0) {
        // Nobody looks whether the first one is in force before the second is asked for.
        const auto changes = static_cast<std::uint64_t>(2 * (round / 10) + 1);
        CHECK_EQ(engine.change_settings({.chunk_size = round % 20 == 0 ? 65536 : 0}), changes);
        CHECK_EQ(engine.change_settings({.fusion_threshold = round % 20 == 0 ? 0 : 1 << 20}),
                 changes + 1);
      }
      std::vector<std::int32_t> large(100000, rank);
      std::vector<std::int32_t> small(10, rank);
      const auto first = engine.submit(in_place(OpKind::kAllreduce, "large", large));
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "small", small)));
      finish(engine, first);
      CHECK_EQ(large[99999], 3);
      CHECK_EQ(small[9], 3);
    }
    CHECK_EQ(engine.settings().epoch, 12U);
    CHECK_EQ(engine.settings().chunk_size, 0);
    CHECK_EQ(engine.settings().fusion_threshold, 1 << 20);
    std::vector<float> data(1);
    if (rank == 0) {
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "end", data)));
    } else {
      CHECK_THROWS_WITH(engine.change_settings({}), Error, "rank 0 only");
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "end", data)));
    }
  });
}

TEST(rings_that_are_full_lose_nothing) {
  // Far more announcements than a ring holds, before anybody waits; some of them by slots that are
  // evicted meanwhile.
  constexpr int kTensors = 3000;
  run_job(
      2,
      [&](int rank, Engine& engine) {
        for (int round = 0; round < 3; ++round) {
          std::vector<std::vector<std::int32_t>> data(kTensors, {rank});
          std::vector<std::int64_t> handles;
          for (int t = 0; t < kTensors; ++t) {
            // The tensors of the last rounds, which have slots, come last.
            const std::string name = std::to_string(round % 2 == 0 ? t : kTensors - 1 - t);
            handles.push_back(
                engine.submit(in_place(OpKind::kAllreduce, name + std::string(400, 'n'),
                                       data[static_cast<std::size_t>(t)])));
          }
          for (const std::int64_t handle : handles) finish(engine, handle);
          for (const auto& values : data) CHECK_EQ(values[0], 1);
        }
      },
      [](EngineOptions& options) {
        options.coordinator.cache_capacity = 100;
        options.settings.fusion_threshold = 200;
      });
}

TEST(ranks_that_do_not_agree_about_the_job_do_not_start) {
  const std::string endpoint = fresh_endpoint();
  run_threads(2, [&](int rank) {
    EngineOptions options = options_of(rank, 2, endpoint);
    options.meeting.agreement = "SAME=1\nX=" + std::to_string(rank) + "\n";
    CHECK_THROWS_WITH(Engine(std::move(options)), Error, "X=1 there, X=0 on rank 0");
  });
}

TEST(a_missing_rank_is_named) {
  const std::string endpoint = fresh_endpoint();
  run_threads(2, [&](int rank) {
    EngineOptions options = options_of(rank, 3, endpoint);
    options.meeting.timeout = 300 * kMillisecond;
    CHECK_THROWS_WITH(Engine(std::move(options)), Error, "missing rank 2");
  });
}

}  // namespace hvdtune::testing::test_engine
