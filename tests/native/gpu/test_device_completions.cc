// Batches that a (fake) GPU works on, and what can happen to them meanwhile.
#include "engine/execution/device_completions.h"

#include <atomic>
#include <mutex>

#include "fake_gpu.h"

namespace hvdtune::testing::test_device_completions {
namespace {

/// What carries a batch, as far as the watch has to do with it.
class Exchange final : public DeviceCommunicator {
 public:
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] int index() const override { return 0; }
  [[nodiscard]] const char* activity(OpKind) const override { return "TEST"; }
  [[nodiscard]] bool supports(DType, ReduceOp, double) const override { return true; }
  void allreduce(CudaPointer, CudaPointer, std::size_t, DType, ReduceOp, double,
                 CudaStream) override {}
  void broadcast(int, CudaPointer, CudaPointer, std::size_t, CudaStream) override {}
  void allgather(CudaPointer, CudaPointer, std::size_t, CudaStream) override {}
  void reducescatter(CudaPointer, CudaPointer, std::size_t, DType, ReduceOp, double,
                     CudaStream) override {}
  void exchange(std::span<const DevicePiece>, std::span<const DevicePiece>, CudaStream) override {}
  void enroll(const DevicePiece&) override {}
  void withdraw(const DevicePiece&) override {}
  [[nodiscard]] std::optional<std::string> failure() const override {
    if (!fails) return {};
    return "the network is gone";
  }
  void abort() override { ++aborts; }

  std::atomic<bool> fails{false};
  std::atomic<int> aborts{0};
};

/// A job that the hooks speak of.
struct Job {
  std::mutex mutex;
  std::optional<std::string> over;
  std::atomic<int> told_done{0};
  std::atomic<int> told_slow{0};
  std::atomic<int> told_slow_over{0};

  void end(const std::string& why) {
    const std::lock_guard lock(mutex);
    over = why;
  }
  DeviceCompletions::Hooks hooks() {
    return {[this] { ++told_done; },
            [this]() -> std::optional<std::string> {
              const std::lock_guard lock(mutex);
              return over;
            },
            [this](const std::string& why) { end("rank 7 failed: " + why); },
            [this](const DeviceBatch&, Nanos) { ++told_slow; },
            {},
            [this] { ++told_slow_over; }};
  }
};

struct Gpu {
  std::shared_ptr<const Device> device = fake_device();
  DeviceStream stream{device};
  DeviceMemory memory{device, 4096};
  std::shared_ptr<Exchange> exchange = std::make_shared<Exchange>();

  /// A batch of `pieces` of work, each of which takes as long as the fault "slow" says.
  std::unique_ptr<DeviceBatch> batch(int pieces, std::uint64_t serial = 0) {
    auto made = std::make_unique<DeviceBatch>();
    made->schedule.batch = serial;
    made->exchange = exchange;
    made->launched = monotonic_now();
    for (int i = 0; i < pieces; ++i) device->clear(memory.pointer(), 4096, stream.handle());
    made->end = std::make_shared<DeviceEvent>(device, false);
    made->end->record(stream.handle());
    return made;
  }
};

constexpr Nanos kLong = 30 * kSecond;

}  // namespace

TEST(batches_are_handed_back_in_their_order_when_they_are_done) {
  const Faults faults("slow=2");
  Gpu gpu;
  Job job;
  DeviceCompletions completions(job.hooks(), 0);
  for (std::uint64_t serial = 0; serial < 20; ++serial) completions.add(gpu.batch(1, serial));
  CHECK(completions.wait_until_idle(monotonic_now() + kLong));
  CHECK(completions.any_done());
  const auto done = completions.take();
  CHECK(!completions.any_done());
  CHECK_EQ(done.size(), 20U);
  for (std::uint64_t serial = 0; serial < 20; ++serial) {
    CHECK_EQ(done[serial]->schedule.batch, serial);
    CHECK(done[serial]->status.ok());
    CHECK(done[serial]->ended >= done[serial]->launched);
  }
  CHECK(job.told_done > 0);
}

TEST(what_carries_them_fails_and_the_job_with_it) {
  const Faults faults("slow=100");
  Gpu gpu;
  Job job;
  DeviceCompletions completions(job.hooks(), 0);
  completions.add(gpu.batch(5));
  gpu.exchange->fails = true;
  CHECK(completions.wait_until_idle(monotonic_now() + kLong));
  const auto done = completions.take();
  CHECK_EQ(done.size(), 1U);
  CHECK(done[0]->status.kind == ErrorKind::kAborted);
  CHECK_EQ(done[0]->status.text, std::string("rank 7 failed: the network is gone"));
  CHECK(done[0]->end->done());  // its tensors are left alone
  CHECK_EQ(gpu.exchange->aborts.load(), 1);
}

TEST(a_job_that_is_over_ends_them) {
  const Faults faults("slow=50");
  Gpu gpu;
  Job job;
  DeviceCompletions completions(job.hooks(), 0);
  completions.add(gpu.batch(3, 0));
  completions.add(gpu.batch(3, 1));
  job.end("somebody died");
  CHECK(completions.wait_until_idle(monotonic_now() + kLong));
  const auto done = completions.take();
  CHECK_EQ(done.size(), 2U);
  for (const auto& batch : done) CHECK_EQ(batch->status.text, std::string("somebody died"));
  CHECK_EQ(gpu.exchange->aborts.load(), 2);
}

TEST(one_that_takes_long_is_reported) {
  const Faults faults("slow=100");
  Gpu gpu;
  Job job;
  DeviceCompletions completions(job.hooks(), 20 * kMillisecond);
  completions.add(gpu.batch(3));
  CHECK(completions.wait_until_idle(monotonic_now() + kLong));
  CHECK(job.told_slow > 0);
  CHECK_EQ(job.told_slow_over.load(), 1);
  CHECK(completions.take().front()->status.ok());
}

TEST(what_is_under_way_at_the_end_is_waited_for) {
  const Faults faults("slow=50");
  Gpu gpu;
  Job job;
  {
    DeviceCompletions completions(job.hooks(), 0);
    completions.add(gpu.batch(2));
  }
  CHECK(job.told_done > 0);
}

TEST(what_was_under_way_when_it_was_stopped_is_handed_back) {
  const Faults faults("slow=50");
  Gpu gpu;
  Job job;
  DeviceCompletions completions(job.hooks(), 0);
  completions.add(gpu.batch(2));
  completions.stop();
  completions.stop();
  const auto done = completions.take();
  CHECK_EQ(done.size(), 1U);
  CHECK(done.front()->status.ok());
}

TEST(times_of_a_batch_are_in_their_order) {
  const Faults faults("slow=5");
  Gpu gpu;
  Job job;
  auto batch = gpu.batch(0);
  const auto mark = [&] {
    gpu.device->clear(gpu.memory.pointer(), 64, gpu.stream.handle());
    auto event = std::make_shared<DeviceEvent>(gpu.device, true);
    event->record(gpu.stream.handle());
    return event;
  };
  batch->begin = mark();
  batch->packed = mark();
  batch->unpacking = mark();
  batch->end = mark();
  DeviceCompletions completions(job.hooks(), 0);
  completions.add(std::move(batch));
  CHECK(completions.wait_until_idle(monotonic_now() + kLong));
  const auto done = completions.take();
  const DeviceTimes times = times_of(*done.front());
  CHECK(done.front()->launched <= times.begin);
  CHECK(times.begin < times.packed);
  CHECK(times.packed < times.unpacking);
  CHECK(times.unpacking < times.end);
  CHECK_EQ(times.end, done.front()->ended);
}

}  // namespace hvdtune::testing::test_device_completions
