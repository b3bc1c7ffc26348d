#include "engine/submission/submissions.h"

#include "engine/job/blocked.h"

namespace hvdtune {
namespace {

constexpr std::size_t kMaxName = 4096;
constexpr std::size_t kMaxRequestBytes = 448 << 10;

std::vector<std::vector<int>> with_global_set(int size, std::vector<std::vector<int>> sets) {
  std::vector<int> everybody(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) everybody[static_cast<std::size_t>(rank)] = rank;
  sets.insert(sets.begin(), std::move(everybody));
  return sets;
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::kInvalidArgument, text);
}

}  // namespace

Submissions::Submissions(const Job& job, std::vector<std::vector<int>> process_sets,
                         const wire::RuntimeSettings& settings, Writing writing,
                         DriveMutex& drive_mutex, BlockedCallers& callers)
    : job_(job),
      callers_(callers),
      sets_(with_global_set(job.size, std::move(process_sets))),
      applied_(settings),
      announcements_(job),
      direct_(job, sets_, registration_, applied_, writing, drive_mutex) {
  if (job.session.heap) registration_.emplace(job.session.heap, job.rank);
}

std::shared_ptr<SharedBlock> Submissions::allocate_shared(std::size_t bytes) {
  if (registration_) return registration_->allocate(bytes);
  if (job_.session.across_hosts()) refuse("the ranks of several hosts share no memory");
  if (!job_.in_shared_memory) refuse("tensors of this job do not travel through shared memory");
  refuse(job_.size == 1 ? "a job of one process shares no memory"
                        : "this system gives the ranks no memory to share for tensors");
}

// ---- whether it can be submitted ----------------------------------------------------------------

/// "3, which has the ranks [0, 2]"
std::string Submissions::members_text(const TableLock& /*held*/, std::uint32_t set) const {
  return std::to_string(set) + ", which has the ranks " + wire::ranks_text(sets_.ranks(set));
}

void Submissions::check(const TableLock& lock, const wire::Request& request) const {
  if (request.name.empty() || request.name.size() > kMaxName) {
    refuse("the name of a tensor must have 1 to " + std::to_string(kMaxName) +
           " bytes; this one has " + std::to_string(request.name.size()));
  }
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  const std::uint32_t set = request.process_set;
  if (joined_ && set == 0) {
    refuse_it("rank " + std::to_string(job_.rank) +
              " has joined; until all ranks have, it can submit nothing to the whole job");
  }
  if (!sets_.exists(set)) {
    refuse_it("process set " + std::to_string(set) + " does not exist or has not been registered");
  }
  if (sets_.index_of(set, job_.rank) < 0) {
    refuse_it("rank " + std::to_string(job_.rank) +
              " is not a member of the provided process set " + members_text(lock, set));
  }
  if (request.kind == OpKind::kBroadcast && sets_.index_of(set, request.root) < 0) {
    refuse_it("invalid root rank " + std::to_string(request.root) + ": not a rank of process set " +
              members_text(lock, set));
  }
  const bool scatters = request.kind == OpKind::kReducescatter;
  if (scatters && request.reduce_op != ReduceOp::kSum && request.reduce_op != ReduceOp::kAverage) {
    throw Error(ErrorKind::kMismatch,
                "tensor " + request.name + ": reducescatter only supports AVERAGE and SUM");
  }
  if (!ended_.ok()) throw Error(ended_);
}

/// Whether what comes with the request fits it.
void Submissions::check_fit(const TableLock& /*held*/, const Submission& submission) const {
  const wire::Request& request = submission.request;
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  if (submission.memory.size() != request.tensors.size()) {
    refuse_it("every tensor of a request needs its memory");
  }
  if (request.kind != OpKind::kAlltoall) return;
  const auto members = sets_.ranks(request.process_set).size();
  if (submission.splits.size() != members) {
    refuse_it("Number of entries in splits (" + std::to_string(submission.splits.size()) +
              ") does not equal the number of processes in the set (" + std::to_string(members) +
              ")");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : submission.splits) {
    if (split < 0) refuse_it("splits must not be negative");
    sum += split;
  }
  const auto& shape = request.tensors.front().shape;
  if (!shape.empty() && sum > shape[0]) {
    refuse_it("Sum of splits entries is greater than the first dimension: " + std::to_string(sum) +
              " > " + std::to_string(shape[0]));
  }
}

// ---- submitting ---------------------------------------------------------------------------------

/// Enters an operation into the table.
OperationPtr Submissions::enter(const TableLock& lock, Submission submission,
                                wire::Slot& known_slot) {
  check(lock, submission.request);
  check_fit(lock, submission);
  auto operation = std::make_shared<Operation>();
  operation->request = std::move(submission.request);
  operation->memory = std::move(submission.memory);
  operation->splits = std::move(submission.splits);
  if (!table_.begin(operation, known_slot)) {
    refuse("tensor " + operation->request.name +
           " was submitted with the same name as another tensor that is still being processed; "
           "names in flight must be different");
  }
  add_handle(lock, operation);
  return operation;
}

/// The same for what all ranks know already.
OperationPtr Submissions::enter(const TableLock& lock, const TensorOperation& wanted,
                                wire::Slot& known_slot) {
  if (const wire::Request* agreed = table_.known(wanted)) {
    check(lock, *agreed);
    OperationPtr operation = table_.begin_known(wanted.memory);
    if (wanted.kind == OpKind::kAlltoall) operation->splits = equal_splits(lock, wanted);
    known_slot = operation->slot;
    add_handle(lock, operation);
    return operation;
  }
  Submission submission{wanted.request(), {wanted.memory}, {}};
  if (wanted.kind == OpKind::kAlltoall) submission.splits = equal_splits(lock, wanted);
  return enter(lock, std::move(submission), known_slot);
}

/// Rows for each member; those that are left over stay.
std::vector<std::int64_t> Submissions::equal_splits(const TableLock& /*held*/,
                                                    const TensorOperation& alltoall) const {
  if (!sets_.exists(alltoall.process_set) || alltoall.shape.empty()) return {};  // refused
  const std::size_t members = sets_.ranks(alltoall.process_set).size();
  return std::vector<std::int64_t>(members, alltoall.shape[0] / static_cast<std::int64_t>(members));
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
  // The others go on without this rank: direct rounds of its other threads must not wait.
  if (joins) {
    for (const OperationPtr& pending : table_.pending()) settle(lock, pending);
  }
  announce_entered(lock, operation, known_slot, monotonic_now());
  // After everything that this rank has announced before: the coordinator reads it in this order.
  if (joins) joined_ = true;
  return operation->handle;
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
    // As wait() does: rank 0's status says how long its callers are blocked.
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

/// A direct round is complete, or the operation is announced after all.
void Submissions::settle(const TableLock& lock, const OperationPtr& operation) {
  if (!operation->direct || operation->done) return;  // evicted, or the job has ended
  if (direct_.settle(lock, *operation)) return finish(lock, operation, true);
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
  announcements_.push(
      lock, wire::encode_announce_slot(operation->slot, operation->ticket, operation->submitted));
  // Always: another rank may have been counted as the last while this was not in the ring yet.
  job_.coordinator_bell.ring(Urgency::kUrgent);
}

// ---- announcing ---------------------------------------------------------------------------------

/// Tells the coordinator of an operation, or takes it back.
void Submissions::announce_entered(const TableLock& lock, const OperationPtr& operation,
                                   wire::Slot known_slot, Nanos now) {
  try {
    announce(lock, operation, known_slot, now);
  } catch (...) {
    table_.finish(operation, false);
    handles_.take(operation->handle);
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
  announcements_.ring(lock, arrival_urgency(lock, operation->request, known_slot));
}

/// Whether the coordinator has anything to do now. A tensor that others still miss needs no
/// wake-up; the last to arrive causes it.
Urgency Submissions::arrival_urgency(const TableLock& /*held*/, const wire::Request& request,
                                     wire::Slot known_slot) {
  // Who is the last, a word of one host's arena cannot tell where there are others.
  if (known_slot != wire::kNoSlot && !job_.session.spans_hosts(sets_.ranks(request.process_set))) {
    const auto members = static_cast<std::uint32_t>(sets_.ranks(request.process_set).size());
    const bool last = job_.arena.slot_round(known_slot).announce(members).last;
    if (!last && job_.arena.joined().load(std::memory_order_seq_cst) == 0) return Urgency::kNone;
  }
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
  // Who waits on the coordinator's rank, drives; if all is done by then, all has been read.
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
