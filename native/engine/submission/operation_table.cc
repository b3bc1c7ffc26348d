#include "engine/submission/operation_table.h"

#include "base/check.h"

namespace hvdtune {
namespace {

/// Prefetches a whole object for writing; does nothing for null.
template <typename T>
void prefetch_object(const T* object) {
  if (object == nullptr) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(object);
  for (std::size_t at = 0; at < sizeof(T); at += 64) __builtin_prefetch(bytes + at, 1);
}

}  // namespace

void OperationTable::agree(Record& record, const wire::Request& request) {
  static std::atomic<std::uint64_t> agreements{0};  // counts over all engines of this process
  record.agreed = request;
  record.agreement = agreements.fetch_add(1, std::memory_order_relaxed) + 1;
  record.spare.reset();
}

bool OperationTable::begin(const OperationPtr& operation, wire::Slot& known_slot) {
  auto found = find_record(operation->request);
  if (found == records_.end()) {
    const wire::Request& request = operation->request;
    found = records_.try_emplace(Key{request.process_set, request.name}).first;
  }
  Record& record = found->second;
  if (record.pending) return false;
  record.pending = operation;
  known_slot = record.slot;
  if (record.slot != wire::kNoSlot && record.agreed == operation->request) {
    operation->slot = record.slot;
    operation->agreement = record.agreement;
  }
  return true;
}

const wire::Request* OperationTable::known(const TensorOperation& wanted) {
  const auto found = records_.find(KeyView{wanted.process_set, wanted.name});
  if (found == records_.end()) return nullptr;
  known_ = &found->second;
  const bool usable = known_->slot != wire::kNoSlot && !known_->pending;
  return usable && wanted.is(known_->agreed) ? &known_->agreed : nullptr;
}

const wire::Request* OperationTable::known(const KnownOperation& wanted) {
  Record* record = wanted.slot < by_slot_.size() ? by_slot_[wanted.slot] : nullptr;
  if (record == nullptr || record->pending) return nullptr;
  if (record->agreement != wanted.agreement || record->agreement == 0) return nullptr;
  known_ = record;
  return &record->agreed;
}

void OperationTable::prefetch(const KnownOperation& wanted) const {
  if (wanted.slot < by_slot_.size()) prefetch_object(by_slot_[wanted.slot]);
}

void OperationTable::prefetch_operation(const KnownOperation& wanted) const {
  const Record* record = wanted.slot < by_slot_.size() ? by_slot_[wanted.slot] : nullptr;
  if (record != nullptr) prefetch_object(record->spare.get());
}

OperationPtr OperationTable::begin_known(const TensorMemory& memory) {
  Record& record = *known_;
  OperationPtr operation = std::move(record.spare);
  if (!operation) {
    operation = std::make_shared<Operation>();
    operation->request = record.agreed;
    operation->agreement = record.agreement;
    operation->memory.resize(1);
  }
  operation->memory.front() = memory;
  operation->slot = record.slot;
  operation->ticket = 0;
  operation->done.store(false, std::memory_order_relaxed);
  record.pending = operation;
  return operation;
}

void OperationTable::keep(OperationPtr operation) {
  const wire::Slot slot = operation->slot;
  if (slot >= by_slot_.size() || by_slot_[slot] == nullptr || operation.use_count() != 1) return;
  Record& record = *by_slot_[slot];
  // The slot may belong to another name by now, and the name may have another meaning.
  if (!record.spare && operation->agreement == record.agreement && record.agreement != 0) {
    record.spare = std::move(operation);
  }
}

const OperationPtr& OperationTable::of_slot(wire::Slot slot) const {
  static const OperationPtr none;
  const Record* record = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  return record != nullptr ? record->pending : none;
}

OperationPtr OperationTable::find(std::uint32_t process_set, const wire::BatchEntry& entry,
                                  std::uint32_t next) {
  if (entry.name.empty()) return of_slot(entry.slot + next);
  auto found = records_.find(KeyView{process_set, entry.name});
  if (entry.description && entry.slot != wire::kNoSlot) {
    // Other ranks use the name while this rank has joined; later this rank may use the slot as
    // well.
    if (found == records_.end()) found = records_.try_emplace(Key{process_set, entry.name}).first;
    agree(found->second, *entry.description);
  }
  if (found == records_.end()) return nullptr;
  if (entry.slot != wire::kNoSlot) {
    if (by_slot_.size() <= entry.slot) by_slot_.resize(entry.slot + 1, nullptr);
    by_slot_[entry.slot] = &found->second;
    found->second.slot = entry.slot;
  }
  return found->second.pending;
}

void OperationTable::finish(const OperationPtr& operation, bool executed) {
  if (operation->slot != wire::kNoSlot && of_slot(operation->slot) == operation) {
    by_slot_[operation->slot]->pending.reset();
    return;
  }
  const auto found = find_record(operation->request);
  if (found == records_.end() || found->second.pending != operation) return;
  Record& record = found->second;
  record.pending.reset();
  if (record.slot == wire::kNoSlot) {
    records_.erase(found);
  } else if (executed && operation->slot == wire::kNoSlot) {
    agree(record, operation->request);
  }
}

OperationPtr OperationTable::evict(wire::Slot slot) {
  if (slot >= by_slot_.size() || by_slot_[slot] == nullptr) return nullptr;
  Record& record = *by_slot_[slot];
  by_slot_[slot] = nullptr;
  record.slot = wire::kNoSlot;
  record.spare.reset();
  if (record.pending) return record.pending;
  const auto found = find_record(record.agreed);
  if (found != records_.end()) records_.erase(found);
  return nullptr;
}

std::vector<OperationPtr> OperationTable::take_set(std::uint32_t process_set) {
  std::vector<OperationPtr> operations;
  std::erase_if(records_, [&](auto& item) {
    if (item.first.process_set != process_set) return false;
    HVD_CHECK(item.second.slot == wire::kNoSlot);
    if (item.second.pending) operations.push_back(std::move(item.second.pending));
    return true;
  });
  return operations;
}

std::vector<OperationPtr> OperationTable::pending() const {
  std::vector<OperationPtr> operations;
  for (const auto& [key, record] : records_) {
    if (record.pending) operations.push_back(record.pending);
  }
  return operations;
}

std::vector<OperationPtr> OperationTable::take_all() {
  std::vector<OperationPtr> operations;
  for (auto& [key, record] : records_) {
    if (record.pending) operations.push_back(std::move(record.pending));
  }
  records_.clear();
  by_slot_.clear();
  return operations;
}

}  // namespace hvdtune
