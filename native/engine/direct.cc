// Allreduces that every member waits for, if they are not large: they do not go by way of the
// coordinator. Each member publishes its data, next to the slot or on its stage (direct_stage.h),
// and arrives (transport/slot_round.h); when all have, each reduces all of it for itself, or they
// share the work (engine/shared_sum.h). Nobody is
// woken, because nobody sleeps: whoever has waited too long announces the tensor after all, and so
// does everybody as soon as one has. Stalls, mismatches and joins are then dealt with as ever.
#include <sched.h>

#include <algorithm>
#include <array>

#include "base/cpu.h"
#include "collective/kernels.h"
#include "collective/shm_reduce.h"
#include "engine/averaging.h"
#include "engine/engine.h"
#include "engine/shared_sum.h"

namespace hvdtune {
namespace {

// Longer than the others need to come when all are at the same place of the program, even with four
// ranks on a CPU; short enough not to matter where they are not.
constexpr Nanos kPatience = 500 * kMicrosecond;
constexpr Nanos kPolling = 5 * kMicrosecond;
constexpr int kPollsPerClockRead = 32;
// Up to here reading everybody's data is cheaper than the steps that going by the coordinator
// takes. Two members read no more either way.
constexpr std::size_t kDirectLimit = 16 << 10;
// Where ranks take turns on a CPU, longer ones go past the coordinator, too. Up to here it is
// cheaper that everybody reads everybody's data than to copy a result once more.
constexpr std::size_t kReducedByFew = 64 << 10;  // up to four members
constexpr std::size_t kReducedByMany = 16 << 10;
// More than this, all members together, is in no cache any more when it is read.
constexpr std::size_t kMostShared = 4 << 20;

/// Whether everybody could reduce it in one step.
bool is_plain(const wire::Request& request) {
  return request.kind == OpKind::kAllreduce && !request.grouped && request.tensors.size() == 1 &&
         request.reduce_op != ReduceOp::kAdasum;
}

}  // namespace

std::int64_t Engine::submit_blocking(Submission submission) {
  return submit_and_settle(std::move(submission));
}

std::int64_t Engine::submit_blocking(const TensorAllreduce& allreduce) {
  return submit_and_settle(allreduce);
}

template <typename Submitted>
std::int64_t Engine::submit_and_settle(Submitted&& submitted) {
  OperationPtr operation;
  const SlotRound* round = nullptr;
  {
    const std::lock_guard lock(table_mutex_);
    wire::Slot known_slot = wire::kNoSlot;
    operation = enter(std::forward<Submitted>(submitted), known_slot);
    if (arrive_direct(*operation)) {
      round = &arena_.slot_round(operation->slot);
    } else {
      announce_entered(operation, known_slot);
    }
  }
  if (round != nullptr) {
    const Nanos began = wait_direct(*operation, *round);
    {
      const std::lock_guard lock(table_mutex_);
      settle_direct(operation);
    }
    // As wait() does: rank 0's status says how long its callers are blocked.
    if (is_coordinator()) {
      blocked_.fetch_add(monotonic_now() - began, std::memory_order_relaxed);
    }
  }
  return operation->handle;
}

/// Bytes of the longest tensor of so many members that goes past the coordinator.
std::size_t Engine::direct_limit(std::size_t members) const {
  if (applied_.one_shot_limit > 0) {
    return std::clamp(static_cast<std::size_t>(applied_.one_shot_limit), kDirectBytes,
                      stage_.longest());
  }
  if (arena_.oversubscribed()) return std::min(shared_stage_.longest(), kMostShared / members);
  return members == 2 ? stage_.longest() : kDirectLimit;
}

/// Whether so many members share the work of a tensor on the stage.
bool Engine::shares_sums(std::size_t members, std::size_t bytes) const {
  return arena_.oversubscribed() && applied_.one_shot_limit <= 0 && members > 1 &&
         bytes > (members <= 4 ? kReducedByFew : kReducedByMany);
}

/// Says, before this rank arrives, where the sum is to be, if it is for this rank to say. The
/// caller holds table_mutex_.
void Engine::place_sum(const Operation& operation, std::uint32_t round) {
  const wire::Request& request = operation.request;
  const auto bytes = static_cast<std::size_t>(request.bytes());
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  if (ranks.front() != rank_) return;
  std::uint64_t place = StagedTensor::kReducedByEach;
  if (shares_sums(ranks.size(), bytes)) {
    place = results_.take(operation.slot, round, request.process_set, bytes).value_or(place);
  }
  arena_.staged(operation.slot, rank_).result[round % 2].store(place, std::memory_order_relaxed);
}

/// False: this rank has to reduce everything for itself. The caller holds table_mutex_.
bool Engine::fetch_shared_sum(const Operation& operation) {
  const wire::Request& request = operation.request;
  const wire::TensorSpec& tensor = request.tensors.front();
  if (tensor.bytes() <= static_cast<std::int64_t>(kDirectBytes)) return false;
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  SharedSum sum(
      arena_, ranks,
      {operation.slot, operation.direct_round, tensor.dtype, plain_reduction(request.reduce_op),
       total_postscale(request, static_cast<int>(ranks.size())),
       static_cast<std::size_t>(tensor.bytes())});
  if (!sum.fetch(operation.memory.front().out, direct_writing_)) return false;
  shared_stage_.give_back(operation.slot, operation.direct_round);
  return true;
}

/// How a tensor on the stage is written. The caller holds table_mutex_.
CopyKind Engine::direct_writing(std::size_t bytes) {
  // Measured by one thread at a time: usually nobody drives now, or it is known without.
  const std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) direct_writing_ = distance_.writing(bytes);
  return direct_writing_;
}

/// Publishes the operation's data for a round of its slot. False when there is no room for them at
/// the moment. The caller holds table_mutex_.
bool Engine::publish_direct(const Operation& operation, std::uint32_t round) {
  const wire::Request& request = operation.request;
  const wire::TensorSpec& tensor = request.tensors.front();
  const auto bytes = static_cast<std::size_t>(tensor.bytes());
  std::byte* mine = nullptr;
  CopyKind writing = CopyKind::kCached;
  if (bytes <= kDirectBytes) {
    mine = arena_.direct_data(operation.slot, round, rank_, bytes);
  } else {
    const bool shared = shares_sums(sets_.ranks(request.process_set).size(), bytes);
    const auto place =
        (shared ? shared_stage_ : stage_).take(operation.slot, round, request.process_set, bytes);
    if (!place) return false;
    mine = arena_.stage(rank_) + *place;
    writing = direct_writing(bytes);
    StagedTensor& staged = arena_.staged(operation.slot, rank_);
    staged.place[round % 2].store(*place, std::memory_order_relaxed);
    place_sum(operation, round);
    // Whatever the rounds before were: a count that lags far behind would look ahead.
    staged.finished.store(round, std::memory_order_release);
  }
  SegmentList data;
  data.add(const_cast<void*>(operation.memory.front().in), bytes);
  pack(data, 0, bytes, mine, tensor.dtype, request.prescale, writing);
  order_copies(writing);
  return true;
}

/// Nobody will read what was published for the round.
void Engine::give_back_stage(const Operation& operation, std::uint32_t round) {
  for (DirectStage* stage : {&stage_, &shared_stage_, &results_}) {
    stage->give_back(operation.slot, round);
  }
}

/// What a member has published for a round that is complete.
const std::byte* Engine::published_direct(const Operation& operation, int rank) const {
  const auto bytes = static_cast<std::size_t>(operation.request.tensors.front().bytes());
  const std::uint32_t round = operation.direct_round;
  if (bytes <= kDirectBytes) return arena_.direct_data(operation.slot, round, rank, bytes);
  return staged_data(arena_, operation.slot, round, rank);
}

/// The caller holds table_mutex_. False: announce it.
bool Engine::arrive_direct(Operation& operation) {
  if (!options_.in_shared_memory) return false;
  const wire::Request& request = operation.request;
  if (operation.slot >= kDirectSlots || !is_plain(request)) return false;
  const std::size_t members = sets_.ranks(request.process_set).size();
  if (session_.spans_hosts(sets_.ranks(request.process_set))) return false;
  const std::int64_t bytes = request.bytes();
  if (bytes <= 0 || bytes > static_cast<std::int64_t>(direct_limit(members))) return false;
  if (arena_.watched().load() != 0 || arena_.joined().load() != 0) return false;
  // Those are reduced where they are.
  if (bytes > static_cast<std::int64_t>(kDirectBytes) && registration_ &&
      registration_->has(operation)) {
    return false;
  }
  SlotRound& round = arena_.slot_round(operation.slot);
  const std::uint32_t current = round.round();
  if (!publish_direct(operation, current)) return false;
  const SlotRound::Arrival arrival =
      round.arrive_direct(static_cast<std::uint32_t>(members), current);
  operation.direct_round = current;
  operation.direct = arrival.accepted;
  if (!arrival.accepted) give_back_stage(operation, current);
  return arrival.accepted;
}

/// Until something is to be done: the round is complete or overruled, or patience ends. Returns
/// when it began.
Nanos Engine::wait_direct(const Operation& operation, const SlotRound& round) const {
  const Nanos began = monotonic_now();
  while (operation.direct && round.state(operation.direct_round) == SlotRound::State::kOpen) {
    const Nanos waited = monotonic_now() - began;
    if (waited > kPatience || operation.done.load(std::memory_order_acquire)) break;
    // Soon, even where there are enough CPUs: the awaited rank may have been put on this one.
    if (patience_.gives_way || waited > std::min(patience_.awake, kPolling)) {
      sched_yield();
      continue;
    }
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      if (round.state(operation.direct_round) != SlotRound::State::kOpen) return began;
      cpu_relax();
    }
  }
  return began;
}

void Engine::settle_all_direct() {
  for (const OperationPtr& operation : table_.pending()) settle_direct(operation);
}

/// The round is complete, or the operation is announced after all. The caller holds table_mutex_.
void Engine::settle_direct(const OperationPtr& operation) {
  if (!operation->direct || operation->done) return;  // evicted, or the job has ended
  const auto members =
      static_cast<std::uint32_t>(sets_.ranks(operation->request.process_set).size());
  SlotRound& round = arena_.slot_round(operation->slot);
  if (!round.change_to_announced(operation->direct_round, members).accepted) {
    return finish_direct(operation);
  }
  give_back_stage(*operation, operation->direct_round);
  operation->direct = false;
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
  operation->recorded_name = capture::kNone;
  push_announcement(
      wire::encode_announce_slot(operation->slot, operation->ticket, operation->submitted));
  // Always: another rank may have been counted as the last while this was not in the ring yet.
  coordinator_bell_.ring(Urgency::kUrgent);
}

bool Engine::direct_is_complete(const Operation& operation) const {
  return arena_.slot_round(operation.slot).state(operation.direct_round) ==
         SlotRound::State::kComplete;
}

/// Reduces everybody's data. The caller holds table_mutex_.
void Engine::reduce_direct(const Operation& operation) {
  const wire::Request& request = operation.request;
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  const wire::TensorSpec& tensor = request.tensors.front();
  std::array<const void*, kMaxRanksPerHost> sources;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const bool own = ranks[member] == rank_ && request.prescale == 1.0;
    // What this rank has published it does not read again: see ShmCommunicator.
    sources[member] =
        own ? operation.memory.front().in : published_direct(operation, ranks[member]);
  }
  const auto members = static_cast<int>(ranks.size());
  reduce_kernel(tensor.dtype, plain_reduction(request.reduce_op))(
      operation.memory.front().out, sources.data(), members,
      static_cast<std::size_t>(tensor.elements()), total_postscale(request, members));
}

/// Everybody has arrived. The caller holds table_mutex_.
void Engine::finish_direct(const OperationPtr& operation) {
  const wire::Request& request = operation->request;
  const std::size_t members = sets_.ranks(request.process_set).size();
  if (!fetch_shared_sum(*operation)) reduce_direct(*operation);
  if (request.bytes() > static_cast<std::int64_t>(kDirectBytes)) {
    arena_.staged(operation->slot, rank_)
        .finished.store(operation->direct_round + 1, std::memory_order_release);
  }
  // For the straggler watch: the coordinator hears nothing of it.
  if (members < static_cast<std::size_t>(size_))
    arena_.apart(rank_).store(monotonic_now(), std::memory_order_relaxed);
  operation->direct = false;
  table_.finish(operation, true);
  operation->done.store(true, std::memory_order_release);
}

/// The slot is evicted while the operation waits in one of its rounds. The caller holds
/// table_mutex_.
void Engine::leave_direct(const OperationPtr& operation) {
  SlotRound& round = arena_.slot_round(operation->slot);
  if (!round.withdraw(operation->direct_round).accepted) return finish_direct(operation);
  give_back_stage(*operation, operation->direct_round);
  operation->direct = false;
  operation->slot = wire::kNoSlot;
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
  operation->recorded_name = capture::kNone;
  push_announcement(
      wire::encode_announce_request(operation->request, operation->ticket, operation->submitted));
  coordinator_bell_.ring(Urgency::kUrgent);
}

/// Who completes a round knows it by counting arrivals: those who have joined count as arrived.
void Engine::on_absent(const TensorEntry& entry, std::size_t ranks) {
  if (entry.slot == wire::kNoSlot || session_.across_hosts()) return;  // of all ranks of the job
  arena_.slot_round(entry.slot)
      .announce(static_cast<std::uint32_t>(entry.members), static_cast<std::uint32_t>(ranks));
}

}  // namespace hvdtune
