#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "collective/shm/shm_registered.h"
#include "engine/operation/operation.h"
#include "transport/arena/shared_heap.h"

namespace hvdtune {

/// This rank's tensors in shared memory, and the positions that the other ranks need to reduce them
/// there.
///
/// Being registered is a property of a round, not of a tensor: the rank publishes the tensor's
/// position, then announces its slot as registered. Only if all ranks have done so is the tensor
/// reduced in place; otherwise it is packed like any other. So the ranks need no prior agreement,
/// and a tensor may move between two rounds.
class Registration {
 public:
  Registration(std::shared_ptr<HeapFile> file, int rank)
      : file_(std::move(file)), heap_(std::make_shared<SharedHeap>(file_, rank)), rank_(rank) {}

  /// Thread-safe; see SharedHeap::allocate.
  std::shared_ptr<SharedBlock> allocate(std::size_t bytes) { return heap_->allocate(bytes); }

  /// Whether publish() would publish an operation of one tensor.
  [[nodiscard]] bool has(const Operation& operation) const;

  /// Publishes the positions of the tensors of an operation with a slot. False if it is not an
  /// allreduce in place of tensors in shared memory, each in a place of its own. One thread at a
  /// time.
  bool publish(const Operation& operation);

  /// The slot was removed. One thread at a time, together with publish().
  void evict(wire::Slot slot) { lists_.erase(slot); }

 private:
  std::shared_ptr<HeapFile> file_;
  std::shared_ptr<SharedHeap> heap_;
  int rank_;
  std::vector<std::uint64_t> offsets_;
  // Positions of the tensors of groups, for the peers to read.
  std::unordered_map<wire::Slot, std::shared_ptr<SharedBlock>> lists_;
};

/// The tensors of operations that were scheduled as registered and are of one dtype.
void add_registered(Operation& operation, std::size_t index, std::vector<RegisteredTensor>& out);

}  // namespace hvdtune
