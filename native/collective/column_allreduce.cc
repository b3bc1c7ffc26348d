#include "collective/column_allreduce.h"

#include <time.h>

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
                     std::function<std::optional<std::string>()> aborted)
      : members_(members),
        device_(std::move(device)),
        aborted_(std::move(aborted)),
        copied_(device_, false) {}

  /// The last share's way back reads the memory that goes.
  ~ColumnThroughHosts() override {
    try {
      await_copies();
    } catch (const Error&) {  // the GPU has failed, or the job: nothing is read any more
    }
  }

  void allreduce(CudaPointer share, std::size_t count, DType dtype, ReduceOp op,
                 CudaStream stream) override {
    const std::size_t bytes = count * dtype_size(dtype);
    if (bytes == 0) return;
    if (memory_.bytes() < bytes) {
      await_copies();
      memory_ = PinnedMemory();
      memory_ = PinnedMemory(device_, bytes);
    }
    // In the order of the stream: behind the way back of the share before, from the same memory.
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

  /// Never asleep in the driver: what is before it in the stream may wait for a rank that is dead.
  void await_copies() const {
    const Nanos began = monotonic_now();
    while (true) {
      const bool done = copied_.done();  // maybe because what was before it was aborted
      if (given_up_) throw Error(ErrorKind::kAborted, kGivenUp);
      if (done) return;
      if (const auto why = aborted_()) throw Error(ErrorKind::kAborted, *why);
      const bool soon = monotonic_now() - began < kMillisecond;
      const timespec pause{0, static_cast<long>(soon ? 5 * kMicrosecond : 50 * kMicrosecond)};
      nanosleep(&pause, nullptr);
    }
  }

  Communicator& members_;
  std::shared_ptr<const Device> device_;
  const std::function<std::optional<std::string>()> aborted_;
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
    std::function<std::optional<std::string>()> aborted) {
  return std::make_unique<ColumnThroughHosts>(members, std::move(device), std::move(aborted));
}

}  // namespace hvdtune
