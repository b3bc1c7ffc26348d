#include "collective/gpu/bypass_communicator.h"

#include <utility>

#include "base/error.h"

namespace hvdtune {

BypassCommunicator::BypassCommunicator(std::shared_ptr<DeviceCommunicator> rest,
                                       std::unique_ptr<PeerAllreduce> peers)
    : PartialDeviceCommunicator(std::move(rest)), peers_(std::move(peers)) {}

const char* BypassCommunicator::activity(OpKind kind) const {
  return kind == OpKind::kAllreduce ? "IPC_ALLREDUCE" : rest().activity(kind);
}

void BypassCommunicator::allreduce(CudaPointer in, CudaPointer out, std::size_t count, DType dtype,
                                   ReduceOp op, double factor, CudaStream stream) {
  if (!supports(dtype, op, factor) || count * dtype_size(dtype) > PeerAllreduce::kLongest) {
    return rest().allreduce(in, out, count, dtype, op, factor, stream);
  }
  peers_->allreduce(in, out, count, dtype, op, factor, stream);
}

std::optional<std::string> BypassCommunicator::failure() const {
  if (auto why = peers_->failure()) return why;
  return rest().failure();
}

void BypassCommunicator::abort() {
  // In a stream of both, either's work may be queued behind the other's: tell both before waiting.
  peers_->give_up();
  rest().abort();
  peers_->abort();
}

}  // namespace hvdtune
