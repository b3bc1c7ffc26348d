// How operations end: outcomes from the schedule, and how submitters fetch them.
#include <cstring>

#include "engine/submission/submissions.h"

namespace hvdtune {
namespace {

/// The zeros of a rank that has joined, for the others' allreduce; nobody takes the result.
OperationPtr zeros_for(const wire::Request& request) {
  auto operation = std::make_shared<Operation>();
  operation->request = request;
  for (const wire::TensorSpec& tensor : request.tensors) {
    OwnedBuffer zeros(static_cast<std::size_t>(tensor.bytes()), tensor.shape);
    std::memset(zeros.data(), 0, zeros.bytes());
    operation->memory.push_back({zeros.data(), zeros.data()});
    operation->outputs.push_back(std::move(zeros));
  }
  return operation;
}

}  // namespace

// ---- progress -----------------------------------------------------------------------------------

std::uint64_t Submissions::find_batch(const DriveLock& /*held*/, const wire::Schedule& schedule,
                                      std::vector<OperationPtr>& batch) {
  std::uint64_t tensors = 0;
  const TableLock lock(mutex_);
  for (const wire::BatchEntry& entry : schedule.entries) {
    tensors += entry.run;
    for (std::uint32_t next = 0; next < entry.run; ++next) {
      if (OperationPtr operation = table_.find(schedule.process_set, entry, next)) {
        batch.push_back(std::move(operation));
      } else if (entry.description) {
        batch.push_back(zeros_for(*entry.description));
      }
    }
  }
  return tensors;
}

OperationPtr Submissions::find_entry(const DriveLock& /*held*/, std::uint32_t set,
                                     const wire::BatchEntry& entry) {
  const TableLock lock(mutex_);
  return table_.find(set, entry);
}

/// The operation has its status and results: hands it to its submitter. Nobody else may touch it
/// afterwards.
void Submissions::set_done(const OperationPtr& operation) {
  const bool calls = operation->calls;
  operation->done.store(true, std::memory_order_release);
  if (calls) completions_.add(operation);
}

void Submissions::finish(const TableLock& /*held*/, const OperationPtr& operation, bool executed) {
  table_.finish(operation, executed);
  set_done(operation);
}

void Submissions::finish_all(const TableLock& lock, const std::vector<OperationPtr>& batch) {
  for (std::size_t at = 0; at < batch.size(); ++at) {
    prefetch_end(batch, at);
    finish(lock, batch[at], batch[at]->status.ok());
  }
}

void Submissions::finish(const DriveLock& /*held*/, const std::vector<OperationPtr>& batch) {
  const TableLock lock(mutex_);
  finish_all(lock, batch);
}

void Submissions::finish_and_forget(const DriveLock& /*held*/, std::vector<OperationPtr>& batch) {
  const TableLock lock(mutex_);
  finish_all(lock, batch);
  batch.clear();
}

void Submissions::forget(const DriveLock& /*held*/, std::vector<OperationPtr>& batch) {
  const TableLock lock(mutex_);
  batch.clear();
}

void Submissions::finish_change(const DriveLock& /*held*/, const wire::BatchEntry& entry,
                                std::int64_t number) {
  const TableLock lock(mutex_);
  const OperationPtr operation = table_.find(0, entry);
  if (!operation) return;
  operation->numbers = {number};
  finish(lock, operation, true);
}

void Submissions::end_join(const DriveLock& /*held*/) {
  const TableLock lock(mutex_);
  joined_ = false;
}

void Submissions::add_set(const DriveLock& /*held*/, std::uint32_t set, std::vector<int> ranks) {
  const TableLock lock(mutex_);
  sets_.add(set, std::move(ranks));
}

void Submissions::remove_set(const DriveLock& /*held*/, std::uint32_t set) {
  const TableLock lock(mutex_);
  sets_.remove(set);
  for (const OperationPtr& operation : table_.take_set(set)) {
    operation->status = {ErrorKind::kAborted, "Process set has been removed: set " +
                                                  std::to_string(set) + " was removed while " +
                                                  operation->request.name + " was waiting in it."};
    set_done(operation);
  }
}

void Submissions::apply(const DriveLock& /*held*/, const wire::RuntimeSettings& settings) {
  const TableLock lock(mutex_);
  applied_ = settings;
}

void Submissions::evict(const DriveLock& /*held*/, wire::Slot slot) {
  const TableLock lock(mutex_);
  if (registration_) registration_->evict(slot);
  const OperationPtr pending = table_.evict(slot);
  if (!pending || pending->slot != slot) return;
  if (!pending->direct) return announcements_.describe(lock, *pending);
  if (direct_.leave(lock, *pending)) return finish(lock, pending, true);
  pending->slot = wire::kNoSlot;
  pending->ticket = next_ticket_++;
  pending->submitted = monotonic_now();
  announcements_.push(
      lock, wire::encode_announce_request(pending->request, pending->ticket, pending->submitted));
  job_.coordinator_bell.ring(Urgency::kUrgent);
}

void Submissions::end(const DriveLock& /*held*/, const Status& status) {
  const TableLock lock(mutex_);
  ended_ = status;
  for (const OperationPtr& operation : table_.take_all()) {
    // The others may have continued, and ended the job, before this rank has looked.
    if (operation->direct && direct_.finish_if_complete(lock, *operation)) {
      finish(lock, operation, true);
      continue;
    }
    if (operation->on_device && operation->on_device->launched) continue;  // it ends by itself
    operation->status = status;
    set_done(operation);
  }
  over_ = true;
}

// ---- callers ------------------------------------------------------------------------------------

OperationPtr Submissions::find(std::int64_t handle) {
  const TableLock lock(mutex_);
  const OperationPtr* found = handles_.find(handle);
  return found == nullptr ? nullptr : *found;
}

bool Submissions::is_done(std::int64_t handle) {
  const TableLock lock(mutex_);
  const OperationPtr* found = handles_.find(handle);
  return found == nullptr || (*found)->done.load(std::memory_order_acquire);
}

OperationPtr Submissions::take(std::int64_t handle) {
  const TableLock lock(mutex_);
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr || !(*found)->done.load(std::memory_order_acquire)) return nullptr;
  return handles_.take(handle);
}

std::vector<int> Submissions::process_set_ranks(std::uint32_t set) {
  const TableLock lock(mutex_);
  return sets_.exists(set) ? sets_.ranks(set) : std::vector<int>{};
}

std::pair<int, int> Submissions::place_in_set(std::uint32_t set) {
  const TableLock lock(mutex_);
  if (!sets_.exists(set)) return {-1, 0};
  return {sets_.index_of(set, job_.rank), static_cast<int>(sets_.ranks(set).size())};
}

wire::RuntimeSettings Submissions::settings() {
  const TableLock lock(mutex_);
  return applied_;
}

Status Submissions::state() {
  const TableLock lock(mutex_);
  return ended_;
}

std::vector<std::string> Submissions::pending_names() {
  const TableLock lock(mutex_);
  std::vector<std::string> names;
  for (const OperationPtr& operation : table_.pending()) names.push_back(operation->request.name);
  return names;
}

}  // namespace hvdtune
