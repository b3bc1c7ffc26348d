// What the executor tells of the CPU time of batches.
#include "engine/execution/executor.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_executor {
namespace {

constexpr std::size_t kPiece = 64;

/// One member, whose barriers make `pool`'s only helper compute, and hardly this thread.
class Computing final : public Communicator {
 public:
  Computing(HelperPool& pool, const Nanos& helper_takes)
      : pool_(pool), helper_takes_(helper_takes) {}

  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] int index() const override { return 0; }
  [[nodiscard]] const char* activity(OpKind) const override { return "COMPUTING"; }
  PhaseTimes allreduce(const AllreduceJob&) override { return {}; }
  PhaseTimes broadcast(const BroadcastJob&) override { return {}; }
  PhaseTimes allgather(const AllgatherJob&) override { return {}; }
  PhaseTimes alltoall(const AlltoallJob&) override { return {}; }
  PhaseTimes reducescatter(const ReducescatterJob&) override { return {}; }
  PhaseTimes sendrecv(const SendrecvJob&) override { return {}; }
  void tune(const Tuning&) override {}
  void report_absence(Nanos, AbsenceReport) override {}

  void barrier() override {
    if (helper_takes_ == 0) return;
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> here{0};
    // As many pieces as threads: each waits for the other, so each has one.
    pool_.share(1, 2 * kPiece, [&](std::size_t, std::size_t) {
      ++here;
      while (here < 2) std::this_thread::yield();
      if (std::this_thread::get_id() == caller) return;
      const Nanos until = thread_cpu_now() + helper_takes_;
      while (thread_cpu_now() < until) {
      }
    });
  }

 private:
  HelperPool& pool_;
  const Nanos& helper_takes_;
};

/// An executor of barriers.
class Barriers {
 public:
  Barriers() : executor_(sets_, 0, timeline_, pool_) {
    std::vector<std::unique_ptr<Communicator>> communicators;
    communicators.push_back(std::make_unique<Computing>(pool_, helper_takes_));
    executor_.connect(std::move(communicators));
    operation_->request.kind = OpKind::kBarrier;
  }

  /// The CPU time that is told of a barrier for which the helper computes so long. What this thread
  /// takes is not in it: of such short batches every BatchCpu::kEvery-th is asked for that.
  Nanos run(bool timed, Nanos helper_takes) {
    helper_takes_ = helper_takes;
    executor_.run({operation_}, 0, false, timed);
    return timed ? executor_.times().cpu : 0;
  }

 private:
  ProcessSets sets_{{{0}}};
  Timeline timeline_;
  HelperPool pool_{
      HelperOptions{.threads = 1, .patience = {}, .least_piece = kPiece, .least_message = 0}};
  Nanos helper_takes_ = 0;
  OperationPtr operation_ = std::make_shared<Operation>();
  Executor executor_;
};

TEST(what_helpers_take_is_the_batch_s) {
  Barriers barriers;
  CHECK(barriers.run(true, 20 * kMillisecond) >= 20 * kMillisecond);
  CHECK(barriers.run(true, 30 * kMillisecond) >= 30 * kMillisecond);
  // Nothing twice, and nothing for nothing.
  CHECK(barriers.run(true, kMillisecond) < 20 * kMillisecond);
  CHECK_EQ(barriers.run(true, 0), 0);
}

TEST(what_helpers_took_before_the_recording_is_nobody_s) {
  Barriers barriers;
  for (int recording = 0; recording < 2; ++recording) {
    barriers.run(false, 200 * kMillisecond);
    const Nanos cpu = barriers.run(true, 20 * kMillisecond);
    CHECK(cpu >= 20 * kMillisecond);
    CHECK(cpu < 200 * kMillisecond);
  }
}

}  // namespace
}  // namespace hvdtune::testing::test_executor
