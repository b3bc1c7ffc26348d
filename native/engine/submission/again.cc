// Repeated operations, many at a time: the gradients of an optimizer, step after step. Between two
// steps all their data leaves the caches; this code waits for memory as rarely as possible.
#include <algorithm>

#include "engine/submission/submissions.h"

namespace hvdtune {
namespace {

// How many operations ahead memory is prefetched: about as long as it takes to arrive. Twice as far
// for data that is needed to prefetch the rest.
constexpr std::size_t kAhead = 4;

}  // namespace

KnownOperation Submissions::known(std::int64_t handle) {
  const TableLock lock(mutex_);
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr || (*found)->agreement == 0) return {};
  if ((*found)->request.kind != OpKind::kAllreduce) return {};  // others need more than memory
  return {(*found)->slot, (*found)->agreement};
}

void Submissions::submit_again(std::span<const KnownOperation> operations,
                               std::span<const TensorMemory> memory,
                               std::vector<std::int64_t>& handles) {
  const TableLock lock(mutex_);
  const Nanos now = monotonic_now();
  std::uint32_t checked = UINT32_MAX;  // process set
  for (std::size_t i = 0; i < std::min(2 * kAhead, operations.size()); ++i) {
    table_.prefetch(operations[i]);
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (i + 2 * kAhead < operations.size()) table_.prefetch(operations[i + 2 * kAhead]);
    if (i + kAhead < operations.size()) table_.prefetch_operation(operations[i + kAhead]);
    const wire::Request* agreed = table_.known(operations[i]);
    if (agreed == nullptr) return;
    if (checked != agreed->process_set) {
      check(lock, *agreed);
      checked = agreed->process_set;
    }
    const OperationPtr operation = table_.begin_known(memory[i]);
    add_handle(lock, operation);
    announce_entered(lock, operation, operation->slot, now);
    handles.push_back(operation->handle);
  }
}

bool Submissions::retire(const TableLock& /*held*/, std::int64_t handle) {
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr) return false;
  const Operation& operation = **found;
  if (!operation.done.load(std::memory_order_acquire) || !operation.status.ok()) return false;
  if (!operation.outputs.empty() || !operation.numbers.empty()) return false;
  if (operation.on_device) return false;
  table_.keep(handles_.take(handle));
  return true;
}

bool Submissions::retire(std::int64_t handle) {
  const TableLock lock(mutex_);
  return retire(lock, handle);
}

void Submissions::retire(std::span<std::int64_t> handles) {
  const TableLock lock(mutex_);
  for (std::int64_t& handle : handles) {
    if (handle > 0 && retire(lock, handle)) handle = 0;
  }
}

}  // namespace hvdtune
