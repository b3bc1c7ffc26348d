#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "collective/shm/shm_registered.h"
#include "engine/operation/operation.h"
#include "transport/arena/shared_heap.h"

namespace hvdtune {

/// This rank's tensors in shared memory, and what the other ranks must know to reduce them there.
///
/// Being registered is a property of a round, not of a tensor: the rank publishes where the tensor
/// is, then announces its slot as registered. Only if all ranks have done so is the tensor reduced
/// in place; otherwise it is packed like any other. So the ranks need not agree on anything before,
/// and a tensor may move between two rounds.
class Registration {
 public:
  Registration(std::shared_ptr<HeapFile> file, int rank)
      : file_(std::move(file)), heap_(std::make_shared<SharedHeap>(file_, rank)), rank_(rank) {}

  /// Thread-safe; see SharedHeap::allocate.
  std::shared_ptr<SharedBlock> allocate(std::size_t bytes) { return heap_->allocate(bytes); }

  /// Whether publish() would publish an operation of one tensor.
  [[nodiscard]] bool has(const Operation& operation) const;

  /// Publishes where the tensors of an operation are that has a slot. False when it is not an
  /// allreduce in place of tensors in shared memory. One thread at a time.
  bool publish(const Operation& operation);

  /// The slot is no more. One thread at a time, together with publish().
  void evict(wire::Slot slot) { lists_.erase(slot); }

 private:
  std::shared_ptr<HeapFile> file_;
  std::shared_ptr<SharedHeap> heap_;
  int rank_;
  std::vector<std::uint64_t> offsets_;
  // Where the tensors of groups are, for the peers to read.
  std::unordered_map<wire::Slot, std::shared_ptr<SharedBlock>> lists_;
};

/// The tensors of operations that were scheduled as registered and are of one dtype.
void add_registered(Operation& operation, std::size_t index, std::vector<RegisteredTensor>& out);

}  // namespace hvdtune
