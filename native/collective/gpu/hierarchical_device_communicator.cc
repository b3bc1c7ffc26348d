#include "collective/gpu/hierarchical_device_communicator.h"

#include <utility>

#include "base/threads/at_once.h"

namespace hvdtune {

HierarchicalDeviceCommunicator::HierarchicalDeviceCommunicator(
    std::shared_ptr<DeviceCommunicator> flat, std::unique_ptr<DeviceCommunicator> within,
    std::unique_ptr<ColumnAllreduce> between)
    : PartialDeviceCommunicator(std::move(flat)),
      within_(std::move(within)),
      between_(std::move(between)) {}

const char* HierarchicalDeviceCommunicator::activity(OpKind kind) const {
  return kind == OpKind::kAllreduce ? between_->activity() : rest().activity(kind);
}

std::size_t HierarchicalDeviceCommunicator::granule() const {
  return static_cast<std::size_t>(within_->size());
}

void HierarchicalDeviceCommunicator::allreduce(CudaPointer in, CudaPointer out, std::size_t count,
                                               DType dtype, ReduceOp op, double factor,
                                               CudaStream stream) {
  const std::size_t share = count / granule();
  const std::size_t size = dtype_size(dtype);
  if (share > 0) {
    const CudaPointer own = out + static_cast<std::size_t>(within_->index()) * share * size;
    within_->reducescatter(in, own, share, dtype, op, factor, stream);
    between_->allreduce(own, share, dtype, op, stream);
    within_->allgather(own, out, share * size, stream);
  }
  const std::size_t done = share * granule();
  rest().allreduce(in + done * size, out + done * size, count - done, dtype, op, factor, stream);
}

void HierarchicalDeviceCommunicator::enroll(const DevicePiece& memory) {
  within_->enroll(memory);
  between_->enroll(memory);
}

void HierarchicalDeviceCommunicator::withdraw(const DevicePiece& memory) {
  within_->withdraw(memory);
  between_->withdraw(memory);
}

std::optional<std::string> HierarchicalDeviceCommunicator::failure() const {
  if (auto why = within_->failure()) return why;
  if (auto why = between_->failure()) return why;
  return rest().failure();
}

void HierarchicalDeviceCommunicator::abort() {
  between_->give_up();
  // In the stream each one's work may be queued behind another's: tell all at once, before waiting
  // for any.
  at_once(
      {[this] { within_->abort(); }, [this] { between_->abort(); }, [this] { rest().abort(); }});
}

}  // namespace hvdtune
