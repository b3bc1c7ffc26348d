#include "engine/submission/submissions.h"

#include "engine/job/blocked.h"

namespace hvdtune {
namespace {

constexpr std::size_t kMaxRequestBytes = 448 << 10;
// A batch of this size executes faster than a thread wakes.
constexpr std::int64_t kShortBytes = 64 << 10;

std::vector<std::vector<int>> with_global_set(int size, std::vector<std::vector<int>> sets) {
  std::vector<int> everybody(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) everybody[static_cast<std::size_t>(rank)] = rank;
  sets.insert(sets.begin(), std::move(everybody));
  return sets;
}

}  // namespace

Submissions::Submissions(const Job& job, std::vector<std::vector<int>> process_sets,
                         const wire::RuntimeSettings& settings, Writing writing,
                         DriveMutex& drive_mutex, BlockedCallers& callers, Completions& completions)
    : job_(job),
      callers_(callers),
      completions_(completions),
      sets_(with_global_set(job.size, std::move(process_sets))),
      applied_(settings),
      announcements_(job),
      direct_(job, sets_, registration_, applied_, writing, drive_mutex) {
  if (job.session.heap) registration_.emplace(job.session.heap, job.rank);
}

std::shared_ptr<SharedBlock> Submissions::allocate_shared(std::size_t bytes) {
  if (registration_) return registration_->allocate(bytes);
  if (job_.session.across_hosts()) refuse("the ranks of several hosts share no memory");
  if (!job_.in_shared_memory) refuse("tensors of this job do not use shared memory");
  refuse(job_.size == 1 ? "a job of one process shares no memory"
                        : "this system gives the ranks no memory to share for tensors");
}

// ---- submitting ---------------------------------------------------------------------------------

void Submissions::check(const TableLock& /*held*/, const wire::Request& request) const {
  check_request(request, sets_, job_.rank, joined_);
  if (!ended_.ok()) throw Error(ended_);
}

void Submissions::check(const wire::Request& request) {
  const TableLock lock(mutex_);
  check(lock, request);
}

/// Enters an operation into the table.
OperationPtr Submissions::enter(const TableLock& lock, Submission submission,
                                wire::Slot& known_slot) {
  OperationPtr operation = enter_without_handle(lock, std::move(submission), known_slot);
  add_handle(lock, operation);
  return operation;
}

OperationPtr Submissions::enter_without_handle(const TableLock& lock, Submission submission,
                                               wire::Slot& known_slot) {
  check(lock, submission.request);
  check_fit(submission, sets_);
  auto operation = std::make_shared<Operation>();
  operation->request = std::move(submission.request);
  operation->memory = std::move(submission.memory);
  operation->splits = std::move(submission.splits);
  if (!table_.begin(operation, known_slot)) refuse_name_in_flight(operation->request.name);
  return operation;
}

/// The same for an operation that all ranks know already.
OperationPtr Submissions::enter(const TableLock& lock, const TensorOperation& wanted,
                                wire::Slot& known_slot) {
  if (const wire::Request* agreed = table_.known(wanted)) {
    check(lock, *agreed);
    OperationPtr operation = table_.begin_known(wanted.memory);
    if (wanted.kind == OpKind::kAlltoall) operation->splits = equal_splits(wanted, sets_);
    known_slot = operation->slot;
    add_handle(lock, operation);
    return operation;
  }
  Submission submission{wanted.request(), {wanted.memory}, {}};
  if (wanted.kind == OpKind::kAlltoall) submission.splits = equal_splits(wanted, sets_);
  return enter(lock, std::move(submission), known_slot);
}

std::int64_t Submissions::submit(const TensorOperation& wanted) {
  const TableLock lock(mutex_);
  wire::Slot known_slot = wire::kNoSlot;
  const OperationPtr operation = enter(lock, wanted, known_slot);
  announce_entered(lock, operation, known_slot, monotonic_now());
  return operation->handle;
}

std::int64_t Submissions::submit(Submission submission, std::shared_ptr<OnDevice> on_device) {
  const TableLock lock(mutex_);
  wire::Slot known_slot = wire::kNoSlot;
  const OperationPtr operation = enter(lock, std::move(submission), known_slot);
  operation->on_device = std::move(on_device);
  const bool joins = operation->request.kind == OpKind::kJoin;
  // The others continue without this rank: direct rounds of its other threads must not wait.
  if (joins) {
    for (const OperationPtr& pending : table_.pending()) settle(lock, pending);
  }
  announce_entered(lock, operation, known_slot, monotonic_now());
  // After all earlier announcements of this rank: the coordinator reads them in this order.
  if (joins) joined_ = true;
  return operation->handle;
}

void Submissions::submit(Submission submission, std::shared_ptr<OnDevice> on_device,
                         OnDone on_done) {
  const TableLock lock(mutex_);
  wire::Slot known_slot = wire::kNoSlot;
  const OperationPtr operation =
      enter_calling(lock, std::move(submission), std::move(on_done), known_slot);
  operation->on_device = std::move(on_device);
  announce_calling(lock, operation, known_slot);
}

OperationPtr Submissions::submit_blocking(Submission submission, OnDone on_done) {
  OperationPtr operation;
  const SlotRound* round = nullptr;
  {
    const TableLock lock(mutex_);
    wire::Slot known_slot = wire::kNoSlot;
    operation = enter_calling(lock, std::move(submission), std::move(on_done), known_slot);
    round = direct_.arrive(lock, *operation);
    if (round == nullptr) {
      // Not for a single tensor: it bypasses the coordinator next time, and driving makes MXNet's
      // slower.
      operation->driven = operation->request.grouped && operation->request.bytes() <= kShortBytes;
      announce_calling(lock, operation, known_slot);
      return operation->driven ? operation : nullptr;
    }
  }
  direct_.wait(*operation, *round);
  {
    const TableLock lock(mutex_);
    settle(lock, operation);
  }
  completions_.tell();
  return nullptr;
}

/// Enters an operation with a callback, before any other thread can see it and end it.
OperationPtr Submissions::enter_calling(const TableLock& lock, Submission submission,
                                        OnDone on_done, wire::Slot& known_slot) {
  OperationPtr operation = enter_without_handle(lock, std::move(submission), known_slot);
  operation->on_done = std::move(on_done);
  operation->calls = true;
  completions_.expect();
  return operation;
}

void Submissions::announce_calling(const TableLock& lock, const OperationPtr& operation,
                                   wire::Slot known_slot) {
  try {
    announce_entered(lock, operation, known_slot, monotonic_now());
  } catch (...) {
    completions_.expect_no_more();
    throw;
  }
}

template <typename Submitted>
std::int64_t Submissions::submit_and_settle(Submitted&& submitted) {
  OperationPtr operation;
  const SlotRound* round = nullptr;
  {
    const TableLock lock(mutex_);
    wire::Slot known_slot = wire::kNoSlot;
    operation = enter(lock, std::forward<Submitted>(submitted), known_slot);
    round = direct_.arrive(lock, *operation);
    if (round == nullptr) announce_entered(lock, operation, known_slot, monotonic_now());
  }
  if (round != nullptr) {
    const Nanos began = direct_.wait(*operation, *round);
    {
      const TableLock lock(mutex_);
      settle(lock, operation);
    }
    // Like wait(): rank 0's status shows how long its callers are blocked.
    if (job_.is_coordinator()) callers_.add_time(monotonic_now() - began);
  }
  return operation->handle;
}

std::int64_t Submissions::submit_blocking(const TensorOperation& wanted) {
  return submit_and_settle(wanted);
}

std::int64_t Submissions::submit_blocking(Submission submission) {
  return submit_and_settle(std::move(submission));
}

/// Completes a direct round, or announces the operation after all.
void Submissions::settle(const TableLock& lock, const OperationPtr& operation) {
  if (!operation->direct || operation->done) return;  // evicted, or the job has ended
  if (direct_.settle(lock, *operation)) return finish(lock, operation, true);
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
  announcements_.push(
      lock, wire::encode_announce_slot(operation->slot, operation->ticket, operation->submitted));
  // Always ring: another rank may have counted as the last before this announcement was in the
  // ring.
  job_.coordinator_bell.ring(Urgency::kUrgent);
}

// ---- announcing ---------------------------------------------------------------------------------

/// Announces an operation to the coordinator; undoes its entry if that fails.
void Submissions::announce_entered(const TableLock& lock, const OperationPtr& operation,
                                   wire::Slot known_slot, Nanos now) {
  try {
    announce(lock, operation, known_slot, now);
  } catch (...) {
    table_.finish(operation, false);
    if (operation->handle != 0) handles_.take(operation->handle);
    throw;
  }
}

void Submissions::announce(const TableLock& lock, const OperationPtr& operation,
                           wire::Slot known_slot, Nanos now) {
  operation->ticket = next_ticket_++;
  operation->submitted = now;
  if (operation->slot != wire::kNoSlot) {
    const bool registered = registration_ && registration_->publish(*operation);
    announcements_.push(
        lock, wire::encode_announce_slot(operation->slot, operation->ticket, now, registered));
  } else {
    const std::string bytes =
        wire::encode_announce_request(operation->request, operation->ticket, now);
    if (bytes.size() > kMaxRequestBytes) {
      refuse("the group " + operation->request.name + " of " +
             std::to_string(operation->request.tensors.size()) +
             " tensors is too large to describe in one message; split it");
    }
    announcements_.push(lock, bytes);
  }
  const Urgency urgency = arrival_urgency(lock, *operation, known_slot);
  // A thread that makes progress on the coordinator's rank reads it itself.
  if (!operation->driven || !job_.is_coordinator()) announcements_.ring(lock, urgency);
}

/// Whether the coordinator has anything to do now. A tensor that other ranks have not announced yet
/// needs no wake-up; the last rank to arrive causes it.
Urgency Submissions::arrival_urgency(const TableLock& /*held*/, const Operation& operation,
                                     wire::Slot known_slot) {
  const wire::Request& request = operation.request;
  // With several hosts, the word in one host's arena cannot tell which rank is last.
  if (known_slot != wire::kNoSlot && !job_.session.spans_hosts(sets_.ranks(request.process_set))) {
    const auto members = static_cast<std::uint32_t>(sets_.ranks(request.process_set).size());
    const bool last = job_.arena.slot_round(known_slot).announce(members).last;
    if (!last && job_.arena.joined().load(std::memory_order_seq_cst) == 0) return Urgency::kNone;
  }
  if (operation.calls) return Urgency::kUrgent;
  for (int rank = 0; rank < job_.size; ++rank) {
    if (job_.arena.doorbell(rank).blocked_on.load(std::memory_order_seq_cst) != blocked::kNothing) {
      return Urgency::kUrgent;
    }
  }
  return Urgency::kNormal;
}

bool Submissions::hold_rings() {
  const TableLock lock(mutex_);
  return announcements_.hold_rings(lock);
}

void Submissions::release_rings(bool then_waits) {
  const TableLock lock(mutex_);
  const Urgency held = announcements_.release_rings(lock);
  // A caller that waits on the coordinator's rank drives; if it finds everything done, everything
  // has been read.
  if (!then_waits || !job_.is_coordinator()) announcements_.ring(lock, held);
}

void Submissions::announce(std::string_view bytes) {
  const TableLock lock(mutex_);
  announcements_.push(lock, bytes);
}

bool Submissions::flush(const DriveLock& /*held*/) {
  const TableLock lock(mutex_);
  return announcements_.flush(lock);
}

bool Submissions::has_backlog(const DriveLock& /*held*/) {
  const TableLock lock(mutex_);
  return announcements_.waiting(lock);
}

}  // namespace hvdtune
