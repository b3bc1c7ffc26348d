#include "collective/bypass_communicator.h"

#include <utility>

#include "base/error.h"

namespace hvdtune {

BypassCommunicator::BypassCommunicator(std::shared_ptr<DeviceCommunicator> rest,
                                       std::unique_ptr<PeerAllreduce> peers)
    : rest_(std::move(rest)), peers_(std::move(peers)) {}

const char* BypassCommunicator::activity(OpKind kind) const {
  return kind == OpKind::kAllreduce ? "IPC_ALLREDUCE" : rest_->activity(kind);
}

bool BypassCommunicator::supports(DType dtype, ReduceOp op, double factor) const {
  return rest_->supports(dtype, op, factor);
}

void BypassCommunicator::allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                                   ReduceOp op, double factor, CudaStream stream) {
  if (!supports(dtype, op, factor) || count * dtype_size(dtype) > PeerAllreduce::kLongest) {
    return rest_->allreduce(in, out, count, dtype, op, factor, stream);
  }
  peers_->allreduce(in, out, count, dtype, op, factor, stream);
}

void BypassCommunicator::broadcast(int root, CudaPointer in, CudaPointer out, std::size_t bytes,
                                   CudaStream stream) {
  rest_->broadcast(root, in, out, bytes, stream);
}

void BypassCommunicator::allgather(CudaPointer in, CudaPointer out, std::size_t bytes_each,
                                   CudaStream stream) {
  rest_->allgather(in, out, bytes_each, stream);
}

void BypassCommunicator::reducescatter(CudaPointer in, CudaPointer out, std::size_t count_each,
                                       DType dtype, ReduceOp op, double factor, CudaStream stream) {
  rest_->reducescatter(in, out, count_each, dtype, op, factor, stream);
}

void BypassCommunicator::exchange(std::span<const DevicePiece> send,
                                  std::span<const DevicePiece> receive, CudaStream stream) {
  rest_->exchange(send, receive, stream);
}

std::optional<std::string> BypassCommunicator::failure() const {
  if (auto why = peers_->failure()) return why;
  return rest_->failure();
}

void BypassCommunicator::abort() {
  // In a stream of both, either may be behind the other: nobody waits before both are told.
  peers_->give_up();
  rest_->abort();
  peers_->abort();
}

}  // namespace hvdtune
