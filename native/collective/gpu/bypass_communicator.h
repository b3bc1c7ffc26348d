#pragma once

#include <memory>

#include "collective/gpu/partial_device_communicator.h"
#include "collective/gpu/peer_allreduce.h"

namespace hvdtune {

/// A DeviceCommunicator for short batches, beside another one of the same members: allreduces of up
/// to PeerAllreduce::kLongest bytes use PeerAllreduce, everything else uses the other. The caller
/// chooses for each batch, the same on all members, which of the two gets it; both may have work
/// under way in one stream or in several.
class BypassCommunicator final : public PartialDeviceCommunicator {
 public:
  BypassCommunicator(std::shared_ptr<DeviceCommunicator> rest,
                     std::unique_ptr<PeerAllreduce> peers);

  [[nodiscard]] const char* activity(OpKind kind) const override;

  void allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype, ReduceOp op,
                 double factor, CudaStream stream) override;
  void enroll(const DevicePiece& memory) override { rest().enroll(memory); }
  void enroll_together(const DevicePiece& memory, Communicator& control) override {
    rest().enroll_together(memory, control);
  }
  void withdraw(const DevicePiece& memory) override { rest().withdraw(memory); }
  [[nodiscard]] std::optional<std::string> failure() const override;
  void abort() override;

 private:
  std::unique_ptr<PeerAllreduce> peers_;
};

}  // namespace hvdtune
