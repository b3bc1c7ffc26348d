// Broadcasts, allgathers, alltoalls, reducescatters and barriers that go past the coordinator, and
// what makes them go by it after all.
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

namespace hvdtune::testing::test_direct_exchange {
namespace {

constexpr OpKind kKinds[] = {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall,
                             OpKind::kReducescatter};

using Values = std::vector<std::int64_t>;

/// What rank `rank` of `ranks` brings in round `round`, as rows of 3.
Values brought(int rank, std::int64_t rows, int round) {
  Values values(static_cast<std::size_t>(rows) * 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (rank + 1) * 1000000 + round * 1000 + static_cast<std::int64_t>(i % 997);
  }
  return values;
}

/// One operation, of everybody's rows, as member `self` of `ranks` sees it.
struct Exchange {
  OpKind kind;
  std::string name;
  std::vector<int> ranks;
  std::size_t self;
  std::vector<std::int64_t> rows;  // of each member
  int round = 0;
  std::uint32_t set = 0;

  [[nodiscard]] std::size_t root() const { return static_cast<std::size_t>(round) % ranks.size(); }

  [[nodiscard]] Values expected() const {
    const auto members = static_cast<std::int64_t>(ranks.size());
    Values result;
    if (kind == OpKind::kBroadcast) return brought(ranks[root()], rows[root()], round);
    if (kind == OpKind::kReducescatter) {
      Values sum(static_cast<std::size_t>(rows[0]) * 3, 0);
      for (std::size_t m = 0; m < ranks.size(); ++m) {
        const Values theirs = brought(ranks[m], rows[m], round);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
      }
      std::int64_t begin = 0;
      std::int64_t length = 0;
      for (std::size_t m = 0; m <= self; ++m) {
        begin += length;
        length = rows[0] / members + (static_cast<std::int64_t>(m) < rows[0] % members ? 1 : 0);
      }
      return {sum.begin() + begin * 3, sum.begin() + (begin + length) * 3};
    }
    for (std::size_t m = 0; m < ranks.size(); ++m) {
      const Values theirs = brought(ranks[m], rows[m], round);
      const std::int64_t part = kind == OpKind::kAlltoall ? rows[m] / members : rows[m];
      const std::int64_t skip =
          kind == OpKind::kAlltoall ? part * static_cast<std::int64_t>(self) : 0;
      result.insert(result.end(), theirs.begin() + skip * 3, theirs.begin() + (skip + part) * 3);
    }
    return result;
  }

  /// Runs it and compares. `place`: give memory for the result. Returns whether it went past the
  /// coordinator: an operation that was announced has a ticket.
  bool run(Engine& engine, bool blocking, bool place) const {
    Values data = brought(ranks[self], rows[self], round);
    const Values wanted = expected();
    Submission submission = allocating(kind, name, data);
    submission.request.tensors[0].shape = {rows[self], 3};
    submission.request.process_set = set;
    if (kind == OpKind::kBroadcast) {
      submission.request.root = ranks[root()];
      submission.memory[0].out = data.data();
    }
    if (kind == OpKind::kAlltoall) {
      submission.splits.assign(ranks.size(), rows[self] / static_cast<std::int64_t>(ranks.size()));
    }
    const auto count = static_cast<std::int64_t>(ranks.size());
    const std::int64_t expected_rows = kind == OpKind::kAllgather       ? rows[self] * count
                                       : kind == OpKind::kReducescatter ? rows[self]
                                                                        : rows[self] + count;
    Values placed(static_cast<std::size_t>(expected_rows) * 3, -1);
    if (place && kind != OpKind::kBroadcast) submission.memory[0].out = placed.data();
    const OperationPtr done =
        finish(engine, blocking ? engine.submit_blocking(std::move(submission))
                                : engine.submit(std::move(submission)));
    if (kind == OpKind::kBroadcast) {
      CHECK(data == wanted);
    } else if (done->outputs.empty()) {
      CHECK(place);
      placed.resize(wanted.size());
      CHECK(placed == wanted);
      CHECK(done->numbers.empty());
    } else {
      CHECK(values_of<std::int64_t>(done->outputs[0]) == wanted);
      CHECK_EQ(done->outputs[0].shape()[0], static_cast<std::int64_t>(wanted.size()) / 3);
      if (kind == OpKind::kAlltoall) {
        for (std::size_t m = 0; m < ranks.size(); ++m) {
          CHECK_EQ(done->numbers[m], rows[m] / count);
        }
      }
    }
    return done->ticket == 0;
  }
};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace

TEST(blocking_and_other_submissions_of_every_kind_meet_in_any_mixture) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::uint32_t capacity : {3U, 1024U}) {  // 3: slots are evicted all the time
      run_job(
          size,
          [&](int rank, Engine& engine) {
            std::mt19937_64 own(static_cast<std::uint64_t>(rank) + capacity);
            std::mt19937_64 common(capacity);
            for (int round = 0; round < 64; ++round) {
              Exchange one{kKinds[round % 4],
                           "",
                           all_ranks(size),
                           static_cast<std::size_t>(rank),
                           {},
                           round};
              one.name = "t" + std::to_string(round % 8);
              // Next to the slot, on the stage, and too large for either.
              constexpr std::int64_t kRows[] = {1, 2, 30, 170, 400, 1500, 3000, 6000};
              const std::int64_t rows = kRows[(round / 8) % 8] * size;
              for (int member = 0; member < size; ++member) {
                const bool may_differ =
                    one.kind == OpKind::kAllgather || one.kind == OpKind::kAlltoall;
                // Now and then lengths differ, so that some lie elsewhere, or there are none.
                const bool differs = common() % 4 == 0 && may_differ;
                one.rows.push_back(differs ? rows * static_cast<std::int64_t>(common() % 4) : rows);
              }
              if (one.kind == OpKind::kReducescatter) {
                const auto more = static_cast<std::int64_t>(common() % 3);
                for (auto& count : one.rows) count += more;
              }
              if (own() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(400));
              one.run(engine, own() % 4 != 0, own() % 2 == 0);
            }
          },
          [&](EngineOptions& options) { options.coordinator.cache_capacity = capacity; });
    }
  }
}

TEST(rounds_of_every_kind_are_direct_where_everybody_waits) {
  for (const int size : {2, 3}) {
    for (const OpKind kind : kKinds) {
      for (const std::int64_t rows : {std::int64_t{size}, std::int64_t{1000} * size}) {
        for (const bool equal : {true, false}) {
          if (!equal && kind != OpKind::kAllgather && kind != OpKind::kAlltoall) continue;
          run_job(size, [&](int rank, Engine& engine) {
            Exchange one{kind, "x", all_ranks(size), static_cast<std::size_t>(rank), {}};
            for (int member = 0; member < size; ++member) {
              one.rows.push_back(equal ? rows : rows * (member + 1));
            }
            bool seen = false;
            for (int round = 0; round < 100000; ++round) {
              one.round = round / size * size;  // the same root: another one is announced
              seen = one.run(engine, true, round % 2 == 0) || seen;
              // Until every rank has seen one.
              std::vector<float> all{seen ? 1.0F : 0.0F};
              finish(engine, engine.submit_blocking(in_place(OpKind::kAllreduce, "seen", all)));
              if (all[0] == static_cast<float>(size)) return;
            }
            CHECK_MSG(false, "no round was direct");
          });
        }
      }
    }
  }
}

TEST(nobody_leaves_a_barrier_before_all_have_come) {
  constexpr int kRanks = 4;
  std::vector<std::atomic<int>> entered(kRanks);
  std::atomic<bool> direct{false};
  run_job(kRanks, [&](int rank, Engine& engine) {
    for (int round = 1; round <= 300; ++round) {
      if (round % 40 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      entered[static_cast<std::size_t>(rank)] = round;
      Submission barrier;
      barrier.request.kind = OpKind::kBarrier;
      barrier.request.name = "barrier";
      const bool blocking = (round + rank) % 16 != 0;
      const OperationPtr done = finish(engine, blocking ? engine.submit_blocking(std::move(barrier))
                                                        : engine.submit(std::move(barrier)));
      for (const auto& one : entered) CHECK(one >= round);
      if (done->ticket == 0) direct = true;
    }
  });
  CHECK(direct);
}

TEST(a_reducescatter_has_the_same_bits_either_way) {
  run_job(3, [](int rank, Engine& engine) {
    for (int code = 0; code < kDTypeCount; ++code) {
      const auto dtype = static_cast<DType>(code);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        for (const double prescale : {1.0, 0.5}) {
          if (dtype == DType::kBool && (op == ReduceOp::kAverage || prescale != 1.0)) continue;
          for (const std::int64_t rows : {7, 5000}) {
            std::vector<Values> results;
            for (int round = 0; round < 4; ++round) {  // the first two by the coordinator
              std::vector<unsigned char> data(static_cast<std::size_t>(rows) * dtype_size(dtype));
              for (std::size_t i = 0; i < data.size(); ++i) {
                data[i] =
                    static_cast<unsigned char>((i * 37 + static_cast<std::size_t>(rank) * 5) % 64);
                if (dtype == DType::kBool) data[i] %= 2;
              }
              Submission submission;
              submission.request.kind = OpKind::kReducescatter;
              submission.request.name = dtype_name(dtype) + std::to_string(rows) +
                                        std::to_string(static_cast<int>(op)) +
                                        std::to_string(prescale);
              submission.request.reduce_op = op;
              submission.request.prescale = prescale;
              submission.request.tensors = {{dtype, {rows}}};
              submission.memory = {{data.data(), nullptr}};
              const OperationPtr done =
                  finish(engine, round < 2 ? engine.submit(std::move(submission))
                                           : engine.submit_blocking(std::move(submission)));
              const auto bytes = values_of<unsigned char>(done->outputs[0]);
              results.emplace_back(bytes.begin(), bytes.end());
            }
            for (const Values& result : results) CHECK(result == results.front());
          }
        }
      }
    }
  });
}

TEST(ranks_that_disagree_about_an_exchange_learn_it) {
  run_job(3, [](int rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      const bool odd = rank == round % 3;
      Exchange one{
          OpKind::kAllgather, "x", all_ranks(3), static_cast<std::size_t>(rank), {2, 2, 2}};
      one.run(engine, true, true);
      // Another operation under the same name.
      Values data(6, 1);
      Submission other = in_place(odd ? OpKind::kAllreduce : OpKind::kAllgather, "x", data);
      other.request.tensors[0].shape = {2, 3};
      if (!odd) other.memory[0].out = nullptr;
      const Status kinds = failure(engine, engine.submit_blocking(std::move(other)));
      CHECK(kinds.kind == ErrorKind::kMismatch);
      check_contains(kinds.text, "Mismatched operations");
      // Another root.
      Submission sent = in_place(OpKind::kBroadcast, "b", data);
      finish(engine, engine.submit_blocking(std::move(sent)));
      Submission received = in_place(OpKind::kBroadcast, "b", data);
      received.request.root = odd ? 1 : 0;
      const Status roots = failure(engine, engine.submit_blocking(std::move(received)));
      check_contains(roots.text, "Mismatched BROADCAST root ranks");
    }
  });
}

TEST(an_exchange_without_a_rank_that_has_joined_fails) {
  run_job(3, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (const OpKind kind : kKinds) {
        Exchange one{kind,
                     "t" + std::to_string(static_cast<int>(kind)),
                     all_ranks(3),
                     static_cast<std::size_t>(rank),
                     {3, 3, 3}};
        one.run(engine, true, true);
        one.run(engine, true, false);
      }
      if (rank != epoch % 3) {
        Values data(9, 1);
        Submission late = allocating(OpKind::kAllgather, "t1", data);
        late.request.tensors[0].shape = {3, 3};
        const Status status = failure(engine, engine.submit_blocking(std::move(late)));
        check_contains(status.text, "not supported with Join");
      }
      finish(engine, engine.join());
    }
  });
}

TEST(process_sets_and_threads_exchange_at_the_same_time) {
  run_job(
      4,
      [](int rank, Engine& engine) {
        std::vector<std::thread> threads;
        std::atomic<int> wrong{0};
        for (std::uint32_t set = 0; set < 4; ++set) {
          const std::vector<int> ranks = engine.process_set_ranks(set);
          const auto [self, members] = engine.place_in_set(set);
          CHECK_EQ(members, static_cast<int>(ranks.size()));
          if (self < 0) continue;
          CHECK_EQ(ranks[static_cast<std::size_t>(self)], rank);
          threads.emplace_back([&, set, ranks, place = static_cast<std::size_t>(self)] {
            try {
              for (int round = 0; round < 200; ++round) {
                Exchange one{kKinds[round % 4],
                             "t" + std::to_string(round % 4),
                             ranks,
                             place,
                             {},
                             round,
                             set};
                const auto unit = static_cast<std::int64_t>(ranks.size());
                one.rows.assign(ranks.size(), unit * (round % 16 == 0 ? 2000 : 4));
                one.run(engine, true, round % 3 == 0);
              }
            } catch (const std::exception&) {
              ++wrong;
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK_EQ(wrong.load(), 0);
        Values end{1};  // nobody shuts down before all are through
        finish(engine, engine.submit_blocking(in_place(OpKind::kAllreduce, "end", end)));
      },
      [](EngineOptions& options) { options.process_sets = {{0, 1}, {1, 2, 3}, {0, 3}}; });
}

TEST(descriptions_that_are_not_copied) {
  run_job(3, [](int rank, Engine& engine) {
    for (int round = 0; round < 50; ++round) {
      for (const OpKind kind : kKinds) {
        Exchange one{kind, "t", all_ranks(3), static_cast<std::size_t>(rank), {6, 6, 6}, round};
        Values data = brought(rank, 6, round);
        Values result(54, -1);
        const std::int64_t shape[] = {6, 3};
        TensorOperation wanted;
        wanted.kind = kind;
        wanted.name = kind == OpKind::kAllgather   ? "g"
                      : kind == OpKind::kBroadcast ? "b"
                      : kind == OpKind::kAlltoall  ? "a"
                                                   : "r";
        wanted.root = kind == OpKind::kBroadcast ? round % 3 : 0;
        wanted.dtype = DType::kInt64;
        wanted.shape = shape;
        wanted.memory = {data.data(), result.data()};
        const std::int64_t handle = engine.submit_blocking(wanted);
        CHECK(engine.wait(handle, monotonic_now() + kPatience));
        CHECK(engine.retire(handle));  // nothing but its status
        const Values expected = one.expected();
        result.resize(expected.size());
        CHECK(result == expected);
      }
    }
  });
}

}  // namespace hvdtune::testing::test_direct_exchange
