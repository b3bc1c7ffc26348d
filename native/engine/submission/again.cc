// Operations that come again as they were, many at a time: the gradients of an optimizer, step
// after step. Between two steps everything about them leaves the caches; what is here waits for
// memory as seldom as it can.
#include <algorithm>

#include "engine/engine.h"

namespace hvdtune {
namespace {

// How far ahead memory is asked for: about as long as it takes to come. Twice as far for what has
// to be there to ask for the rest.
constexpr std::size_t kAhead = 4;

}  // namespace

KnownOperation Engine::known(std::int64_t handle) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr || (*found)->agreement == 0) return {};
  if ((*found)->request.kind != OpKind::kAllreduce) return {};  // others need more than memory
  return {(*found)->slot, (*found)->agreement};
}

void Engine::submit_again(std::span<const KnownOperation> operations,
                          std::span<const TensorMemory> memory,
                          std::vector<std::int64_t>& handles) {
  const std::lock_guard lock(table_mutex_);
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
      check(*agreed);
      checked = agreed->process_set;
    }
    const OperationPtr operation = table_.begin_known(memory[i]);
    operation->handle = next_handle_++;
    handles_.add(operation->handle, operation);
    announce_entered(operation, operation->slot, now);
    handles.push_back(operation->handle);
  }
}

/// The caller holds table_mutex_.
bool Engine::retire_locked(std::int64_t handle) {
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr) return false;
  const Operation& operation = **found;
  if (!operation.done.load(std::memory_order_acquire) || !operation.status.ok()) return false;
  if (!operation.outputs.empty() || !operation.numbers.empty()) return false;
  if (operation.on_device) return false;
  table_.keep(handles_.take(handle));
  return true;
}

bool Engine::retire(std::int64_t handle) {
  const std::lock_guard lock(table_mutex_);
  return retire_locked(handle);
}

void Engine::retire(std::span<std::int64_t> handles) {
  const std::lock_guard lock(table_mutex_);
  for (std::int64_t& handle : handles) {
    if (handle > 0 && retire_locked(handle)) handle = 0;
  }
}

}  // namespace hvdtune
