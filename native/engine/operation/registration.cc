#include "engine/operation/registration.h"

#include <atomic>

#include "collective/kernels/segments.h"

namespace hvdtune {

bool Registration::has(const Operation& operation) const {
  if (heap_->empty()) return false;
  const TensorMemory& memory = operation.memory.front();
  const auto bytes = static_cast<std::size_t>(operation.request.tensors.front().bytes());
  return memory.in == memory.out && heap_->offset_of(memory.out, bytes).has_value();
}

bool Registration::publish(const Operation& operation) {
  if (heap_->empty()) return false;
  const wire::Request& request = operation.request;
  if (request.kind != OpKind::kAllreduce || request.reduce_op == ReduceOp::kAdasum) return false;
  offsets_.clear();
  SegmentList memory_of_all;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(request.tensors[i].bytes());
    const TensorMemory& memory = operation.memory[i];
    if (memory.in != memory.out) return false;
    const auto offset = bytes == 0 ? 0 : heap_->offset_of(memory.out, bytes);
    if (!offset) return false;
    offsets_.push_back(*offset);
    if (request.tensors.size() > 1) memory_of_all.add(memory.out, bytes);
  }
  // A tensor that is in a group twice would be reduced twice in its place.
  if (offsets_.empty() || memory_of_all.overlaps()) return false;
  std::uint64_t place = offsets_.front();
  if (offsets_.size() > 1) {
    std::shared_ptr<SharedBlock>& list = lists_[operation.slot];
    const std::size_t bytes = offsets_.size() * sizeof(std::uint64_t);
    if (!list || list->bytes() < bytes) {
      try {
        list = heap_->allocate(bytes);
      } catch (const Error&) {
        return false;  // packed like any other
      }
    }
    auto* places = reinterpret_cast<std::atomic<std::uint64_t>*>(list->data());
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      places[i].store(offsets_[i], std::memory_order_relaxed);
    }
    place = list->offset();
  }
  // Only ranks that hold a block of the reduction read it, and the reduction begins after the
  // announcement.
  file_->place(rank_, operation.slot).store(place, std::memory_order_relaxed);
  return true;
}

void add_registered(Operation& operation, std::size_t index, std::vector<RegisteredTensor>& out) {
  const wire::Request& request = operation.request;
  out.push_back({operation.slot, static_cast<std::uint32_t>(index),
                 static_cast<std::uint32_t>(request.tensors.size()),
                 static_cast<std::byte*>(operation.memory[index].out),
                 static_cast<std::size_t>(request.tensors[index].bytes())});
}

}  // namespace hvdtune
