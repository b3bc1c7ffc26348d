#include "engine/operation_table.h"

#include "base/check.h"

namespace hvdtune {

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
  }
  return true;
}

OperationPtr OperationTable::find(std::uint32_t process_set, const wire::BatchEntry& entry) {
  if (entry.name.empty()) {
    Record* record = entry.slot < by_slot_.size() ? by_slot_[entry.slot] : nullptr;
    return record != nullptr ? record->pending : nullptr;
  }
  auto found = records_.find(KeyView{process_set, entry.name});
  if (entry.description && entry.slot != wire::kNoSlot) {
    // Others use the name while this rank has joined: later it may use the slot like them.
    if (found == records_.end()) found = records_.try_emplace(Key{process_set, entry.name}).first;
    found->second.agreed = *entry.description;
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
  const auto found = find_record(operation->request);
  if (found == records_.end() || found->second.pending != operation) return;
  Record& record = found->second;
  record.pending.reset();
  if (record.slot == wire::kNoSlot) {
    records_.erase(found);
  } else if (executed && operation->slot == wire::kNoSlot) {
    record.agreed = operation->request;
  }
}

OperationPtr OperationTable::evict(wire::Slot slot) {
  if (slot >= by_slot_.size() || by_slot_[slot] == nullptr) return nullptr;
  Record& record = *by_slot_[slot];
  by_slot_[slot] = nullptr;
  record.slot = wire::kNoSlot;
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
