#include "observe/status/step_log.h"

#include <string>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_step_log {
namespace {

/// Schedules tensors one nanosecond after another; those that begin with '?' have no name.
class Traffic {
 public:
  void schedule(const std::vector<std::string>& tensors) {
    for (const std::string& tensor : tensors) {
      log_.tensor(tensor, tensor[0] != '?', 1, 10, ++now_, 0);
    }
  }

  /// Tensors of every step that has ended since the last call.
  std::vector<std::int64_t> steps() {
    std::vector<std::int64_t> found;
    for (const StepRecord& step : read()) found.push_back(step.tensors);
    return found;
  }

  std::vector<StepRecord> read() { return log_.read(0); }

 private:
  StepLog log_;
  Nanos now_ = 0;
};

using Counts = std::vector<std::int64_t>;

TEST(a_step_ends_when_a_name_comes_again) {
  Traffic traffic;
  for (int step = 0; step < 4; ++step) traffic.schedule({"a", "b", "c"});
  const std::vector<StepRecord> found = traffic.read();
  CHECK_EQ(found.size(), 2u);  // the beginning of the first and the end of the last are unknown
  for (const StepRecord& step : found) {
    CHECK_EQ(step.tensors, 3);
    CHECK_EQ(step.bytes, 30);
    CHECK_EQ(step.duration, 3);
    CHECK(step.named);
  }
}

TEST(tensors_without_names_belong_to_the_step_they_come_in) {
  Traffic traffic;
  // Metrics that look all the same, before the gradients and behind them.
  for (int step = 0; step < 4; ++step) traffic.schedule({"?", "?", "a", "b", "?", "?", "?"});
  // That they are followed by names is not known before the first ones.
  CHECK(traffic.steps() == Counts({8, 7, 7}));
}

TEST(tensors_without_names_alone_are_told_apart_by_their_looks) {
  Traffic traffic;
  for (int step = 0; step < 3; ++step) traffic.schedule({"?x", "?y", "?x", "?z"});
  const std::vector<StepRecord> found = traffic.read();
  Counts tensors;
  for (const StepRecord& step : found) {
    tensors.push_back(step.tensors);
    CHECK(!step.named);
  }
  CHECK(tensors == Counts({2, 2, 2, 2}));
}

TEST(names_that_come_no_more_do_not_hold_a_step_open) {
  Traffic traffic;
  traffic.schedule({"a", "a", "a"});
  CHECK(traffic.steps() == Counts({1}));
  for (int step = 0; step < 2000; ++step) traffic.schedule({"?x"});
  CHECK(traffic.steps().size() > 900);
}

TEST(names_that_never_come_again_do_not_fill_the_memory) {
  StepLog log;
  for (int i = 0; i < 300'000; ++i) log.tensor("n" + std::to_string(i), true, 1, 10, i + 1, 0);
  CHECK(!log.seen("n0"));
  CHECK(log.seen("n299999"));
  const std::uint64_t step = log.step();
  log.tensor("n299999", true, 1, 10, 300'001, 0);
  CHECK_EQ(log.step(), step + 1);  // steps are still found
}

}  // namespace

}  // namespace hvdtune::testing::test_step_log
