#include "collective/gpu/column_allreduce.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "device/stream.h"

namespace hvdtune {
namespace {

class ColumnOnGpus final : public ColumnAllreduce {
 public:
  explicit ColumnOnGpus(std::unique_ptr<DeviceCommunicator> members)
      : members_(std::move(members)) {}

  [[nodiscard]] const char* activity() const override { return "NCCL_HIERARCHICAL_ALLREDUCE"; }
  void allreduce(CudaPointer share, std::size_t count, DType dtype, ReduceOp op,
                 CudaStream stream) override {
    members_->allreduce(share, share, count, dtype, op, 1.0, stream);
  }
  void enroll(const DevicePiece& memory) override { members_->enroll(memory); }
  void withdraw(const DevicePiece& memory) override { members_->withdraw(memory); }
  [[nodiscard]] std::optional<std::string> failure() const override { return members_->failure(); }
  void abort() override { members_->abort(); }

 private:
  std::unique_ptr<DeviceCommunicator> members_;
};

class ColumnThroughHosts final : public ColumnAllreduce {
 public:
  ColumnThroughHosts(Communicator& members, std::shared_ptr<const Device> device,
                     std::function<std::optional<std::string>()> why_not)
      : members_(members),
        device_(std::move(device)),
        why_not_(std::move(why_not)),
        copied_(device_, false) {}

  ~ColumnThroughHosts() override {
    if (copies_have_ended(kGrace)) return;
    (void)new PinnedMemory(std::move(memory_));  // leaked: copies may still use it
  }

  [[nodiscard]] const char* activity() const override { return "NCCL_AND_HOST_ALLREDUCE"; }

  void allreduce(CudaPointer share, std::size_t count, DType dtype, ReduceOp op,
                 CudaStream stream) override {
    const std::size_t bytes = count * dtype_size(dtype);
    if (bytes == 0) return;
    if (memory_.bytes() < bytes) {
      await_copies();
      const std::size_t wanted = std::max({bytes, 2 * memory_.bytes(), kLeast});
      memory_ = PinnedMemory();
      memory_ = PinnedMemory(device_, wanted);
    }
    // The stream orders this copy after the previous share's copy back from the same memory.
    device_->copy(memory_.pointer(), share, bytes, stream);
    copied_.record(stream);
    await_copies();
    SegmentList whole;
    whole.add(static_cast<std::byte*>(memory_.data()), bytes);
    members_.allreduce({whole, whole, dtype, op});
    device_->copy(share, memory_.pointer(), bytes, stream);
    copied_.record(stream);
  }

  void enroll(const DevicePiece&) override {}
  void withdraw(const DevicePiece&) override {}

  [[nodiscard]] std::optional<std::string> failure() const override {
    if (given_up_) return kGivenUp;
    return {};
  }
  void give_up() override { given_up_ = true; }
  void abort() override { give_up(); }

 private:
  static constexpr const char* kGivenUp = "the exchange between hosts was aborted";
  static constexpr std::size_t kLeast = std::size_t{1} << 20;
  static constexpr Nanos kGrace = 5 * kSecond;
  static constexpr Nanos kBetweenLooks = kMillisecond;  // for a failure

  static void pause(Nanos waited) {
    const Nanos time = waited < kMillisecond ? 5 * kMicrosecond : 50 * kMicrosecond;
    const timespec request{0, static_cast<long>(time)};
    nanosleep(&request, nullptr);
  }

  [[nodiscard]] bool copies_have_ended(Nanos most) const {
    const Nanos began = monotonic_now();
    try {
      while (!copied_.done()) {
        const Nanos waited = monotonic_now() - began;
        if (waited > most) return false;
        pause(waited);
      }
    } catch (const Error&) {  // the GPU does nothing any more
    }
    return true;
  }

  /// Never sleeps in the driver: earlier work in the stream may wait for a dead rank.
  void await_copies() const {
    const Nanos began = monotonic_now();
    Nanos looked = 0;
    while (true) {
      const bool done = copied_.done();  // maybe because earlier work was aborted
      if (given_up_) throw Error(ErrorKind::kAborted, kGivenUp);
      if (done) return;
      const Nanos now = monotonic_now();
      if (now - looked > kBetweenLooks) {
        if (const auto why = why_not_()) throw Error(ErrorKind::kAborted, *why);
        looked = now;
      }
      pause(now - began);
    }
  }

  Communicator& members_;
  std::shared_ptr<const Device> device_;
  const std::function<std::optional<std::string>()> why_not_;
  PinnedMemory memory_;
  DeviceEvent copied_;  // to the host, or back
  std::atomic<bool> given_up_ = false;
};

}  // namespace

std::unique_ptr<ColumnAllreduce> make_column_on_gpus(std::unique_ptr<DeviceCommunicator> members) {
  return std::make_unique<ColumnOnGpus>(std::move(members));
}

std::unique_ptr<ColumnAllreduce> make_column_through_hosts(
    Communicator& members, std::shared_ptr<const Device> device,
    std::function<std::optional<std::string>()> why_not) {
  return std::make_unique<ColumnThroughHosts>(members, std::move(device), std::move(why_not));
}

}  // namespace hvdtune
