#include "engine/operation/completions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "engine_job.h"

namespace hvdtune::testing::test_completions {
namespace {

/// Sleeps until `count` is `wanted`, which nobody's wait brings about.
void await(const std::atomic<int>& count, int wanted) {
  const Nanos deadline = monotonic_now() + kPatience;
  while (count < wanted && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(count.load(), wanted);
}

/// How operations ended, by number.
struct Ends {
  explicit Ends(std::size_t operations) : calls(operations), ok(operations) {}

  OnDone note(std::size_t number) {
    return [this, number](const OperationPtr& operation) {
      ok[number] = operation->status.ok();
      ++calls[number];
      ++over;
    };
  }

  std::vector<std::atomic<int>> calls;
  std::vector<std::atomic<bool>> ok;
  std::atomic<int> over{0};
};

}  // namespace

TEST(whoever_submits_is_called_once_whatever_the_order_on_each_rank) {
  constexpr int kOperations = 200;
  run_job(3, [](int rank, Engine& engine) {
    std::vector<std::vector<float>> data;
    std::vector<int> order;
    for (int i = 0; i < kOperations; ++i) {
      data.emplace_back(static_cast<std::size_t>(1 + i), static_cast<float>(rank + i));
      order.push_back((i * (4 * rank + 3) + rank) % kOperations);  // 3, 7, 11: a permutation
    }
    for (int round = 0; round < 3; ++round) {
      Ends ends(kOperations);
      for (auto& tensor : data) std::fill(tensor.begin(), tensor.end(), static_cast<float>(rank));
      for (const int i : order) {
        Submission one = in_place(OpKind::kAllreduce, "t" + std::to_string(i),
                                  data[static_cast<std::size_t>(i)]);
        const OnDone note = ends.note(static_cast<std::size_t>(i));
        // Some wait a little, for operations that the others may not have submitted yet.
        if (i % 16 == 5 * rank) {
          engine.submit_blocking(std::move(one), note);
        } else {
          engine.submit(std::move(one), note);
        }
      }
      await(ends.over, kOperations);
      for (int i = 0; i < kOperations; ++i) {
        const auto at = static_cast<std::size_t>(i);
        CHECK_EQ(ends.calls[at].load(), 1);
        CHECK(ends.ok[at]);
        CHECK(std::all_of(data[at].begin(), data[at].end(), [](float x) { return x == 3.0F; }));
      }
    }
  });
}

TEST(a_continuation_may_submit_what_depends_on_it) {
  constexpr int kLinks = 60;
  run_job(2, [](int rank, Engine& engine) {
    std::vector<std::int64_t> link(4, rank);  // at the first link the sum is 1, then it doubles
    std::atomic<int> links{0};
    std::function<void()> next = [&] {
      engine.submit(in_place(OpKind::kAllreduce, "link", link), [&](const OperationPtr& over) {
        CHECK(over->status.ok());
        if (++links < kLinks) next();
      });
    };
    next();
    await(links, kLinks);
    CHECK_EQ(link.front(), std::int64_t{1} << (kLinks - 1));
  });
}

TEST(who_waits_for_a_short_operation_makes_progress_himself) {
  constexpr int kCalls = 40;
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> first(3);
    std::vector<float> second(5);
    Ends ends(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      first.assign(3, 1.0F);
      second.assign(5, static_cast<float>(rank));
      Submission group = in_place(OpKind::kAllreduce, "group", first);  // is no direct round
      const Submission other = in_place(OpKind::kAllreduce, "", second);
      group.request.grouped = true;
      group.request.tensors.push_back(other.request.tensors.front());
      group.memory.push_back(other.memory.front());
      // Now and then a rank does not come as long as the other waits.
      if (i % 8 == 4 * rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      engine.submit_blocking(std::move(group), ends.note(static_cast<std::size_t>(i)));
      await(ends.over, i + 1);
      CHECK_EQ(ends.calls[static_cast<std::size_t>(i)].load(), 1);
      CHECK(ends.ok[static_cast<std::size_t>(i)]);
      CHECK_EQ(first[2], 2.0F);
      CHECK_EQ(second[4], 1.0F);
    }
  });
}

TEST(results_that_the_engine_allocates_reach_the_continuation) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> rows(static_cast<std::size_t>(rank + 1), static_cast<float>(rank));
    std::vector<float> gathered;
    std::atomic<int> over{0};
    engine.submit(allocating(OpKind::kAllgather, "rows", rows), [&](const OperationPtr& done) {
      gathered = values_of<float>(done->outputs.front());
      ++over;
    });
    await(over, 1);
    CHECK(gathered == std::vector<float>({0.0F, 1.0F, 1.0F}));
  });
}

TEST(callers_who_wait_and_continuations_go_together) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> called(8, 1.0F);
    std::vector<float> waited(8, static_cast<float>(rank));
    Ends ends(50);
    for (std::size_t i = 0; i < 50; ++i) {
      called.assign(8, 1.0F);
      engine.submit(in_place(OpKind::kAllreduce, "called", called), ends.note(i));
      finish(engine, engine.submit_blocking(in_place(OpKind::kAllreduce, "waited", waited)));
      await(ends.over, static_cast<int>(i) + 1);
      CHECK_EQ(called[3], 2.0F);
    }
  });
}

TEST(what_is_in_flight_at_the_end_is_called_once_and_what_is_refused_never) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> alone(4, 1.0F);
    std::vector<float> twice(4, 1.0F);
    Ends ends(3);
    if (rank == 0) {
      engine.submit_blocking(in_place(OpKind::kAllreduce, "alone", alone), ends.note(0));
      CHECK_THROWS_WITH(engine.submit(in_place(OpKind::kAllreduce, "alone", twice), ends.note(1)),
                        Error, "names in flight must be different");
    }
    std::vector<float> both(1, 1.0F);  // rank 1 must not end the job before
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "both", both)));
    engine.shutdown();
    CHECK_EQ(ends.calls[0].load(), rank == 0 ? 1 : 0);
    CHECK(!ends.ok[0]);
    CHECK_EQ(ends.calls[1].load(), 0);
    CHECK_THROWS(engine.submit(in_place(OpKind::kAllreduce, "late", twice), ends.note(2)), Error);
    CHECK_EQ(ends.calls[2].load(), 0);
  });
}

TEST(a_job_that_is_aborted_calls_whoever_waits) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> alone(4, 1.0F);
    std::vector<float> both(1, 1.0F);
    Ends ends(1);
    if (rank == 0) {
      engine.submit_blocking(in_place(OpKind::kAllreduce, "alone", alone), ends.note(0));
    }
    const std::int64_t handle = engine.submit(in_place(OpKind::kAllreduce, "both", both));
    CHECK(engine.wait(handle, monotonic_now() + kPatience));  // rank 0's may end with the job
    if (rank == 1) engine.abort("it is the test's wish");
    await(ends.over, rank == 0 ? 1 : 0);
    CHECK_EQ(ends.calls[0].load(), rank == 0 ? 1 : 0);
    CHECK(!ends.ok[0]);
  });
}

TEST(what_goes_with_its_process_set_is_called) {
  run_job(3, [](int rank, Engine& engine) {
    const auto set =
        static_cast<std::uint32_t>(finish(engine, engine.add_process_set({0, 1}))->numbers.front());
    std::vector<float> data(4, 1.0F);
    Ends ends(1);
    if (rank == 0) {
      Submission submission = in_place(OpKind::kAllreduce, "left behind", data);
      submission.request.process_set = set;
      engine.submit(std::move(submission), ends.note(0));
    }
    finish(engine, engine.remove_process_set(set));
    await(ends.over, rank == 0 ? 1 : 0);
    CHECK(!ends.ok[0]);
  });
}

}  // namespace hvdtune::testing::test_completions
