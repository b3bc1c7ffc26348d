#pragma once

#include <memory>
#include <utility>

#include "collective/gpu/device_communicator.h"

namespace hvdtune {

/// A DeviceCommunicator that implements allreduces itself, and passes every other operation to
/// another communicator of the same members.
class PartialDeviceCommunicator : public DeviceCommunicator {
 public:
  [[nodiscard]] int size() const override { return rest_->size(); }
  [[nodiscard]] int index() const override { return rest_->index(); }
  [[nodiscard]] bool supports(DType dtype, ReduceOp op, double factor) const override {
    return rest_->supports(dtype, op, factor);
  }
  void broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                 CudaStream stream) override {
    rest_->broadcast(root, in, out, bytes, stream);
  }
  void allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                 CudaStream stream) override {
    rest_->allgather(in, out, bytes_each, stream);
  }
  void reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each, DType dtype,
                     ReduceOp op, double factor, CudaStream stream) override {
    rest_->reducescatter(in, out, count_each, dtype, op, factor, stream);
  }
  void exchange(std::span<const DevicePiece> send, std::span<const DevicePiece> receive,
                CudaStream stream) override {
    rest_->exchange(send, receive, stream);
  }

 protected:
  explicit PartialDeviceCommunicator(std::shared_ptr<DeviceCommunicator> rest)
      : rest_(std::move(rest)) {}

  [[nodiscard]] DeviceCommunicator& rest() const { return *rest_; }

 private:
  std::shared_ptr<DeviceCommunicator> rest_;
};

}  // namespace hvdtune
