// Operations that every member waits for, if they are not large: they do not go by way of the
// coordinator. Each member publishes its data (direct_data.h), and arrives
// (transport/arena/slot_round.h); when all have, each makes its result of them for itself, or they
// share the work (shared_sum.h). Nobody is woken, because nobody sleeps: whoever has waited too
// long announces the tensor after all, and so does everybody as soon as one has. Stalls, mismatches
// and joins are then dealt with as ever.
#include <algorithm>

#include "base/cpu.h"
#include "base/patience.h"
#include "engine/engine.h"

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
constexpr std::size_t kBroadcastLimit = 256 << 10;

}  // namespace

std::int64_t Engine::submit_blocking(Submission submission) {
  if (!submission.request.on_host()) return submit(std::move(submission));
  return submit_and_settle(std::move(submission));
}

std::int64_t Engine::submit_blocking(const TensorOperation& wanted) {
  return submit_and_settle(wanted);
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
      announce_entered(operation, known_slot, monotonic_now());
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

/// Bytes of the longest tensor of so many members that goes past the coordinator. Of an allreduce,
/// each of them reads all others' data then, while with the coordinator they share the work. In
/// other operations nobody reads more either way; but in a broadcast nobody copies anything out
/// before the root has copied all of it in.
std::size_t Engine::direct_limit(OpKind kind, std::size_t members) const {
  if (kind == OpKind::kBroadcast) return std::min(direct_data_.longest(), kBroadcastLimit);
  if (kind != OpKind::kAllreduce) return direct_data_.longest();
  if (applied_.one_shot_limit > 0) {
    return std::clamp(static_cast<std::size_t>(applied_.one_shot_limit), kDirectBytes,
                      direct_data_.longest());
  }
  if (arena_.oversubscribed() && members > 1) {
    return std::min(direct_data_.longest_shared(), kMostShared / members);
  }
  return members <= 2 ? direct_data_.longest() : kDirectLimit;
}

/// Whether so many members share the work of a tensor on the stage.
bool Engine::shares_sums(std::size_t members, std::size_t bytes) const {
  return arena_.oversubscribed() && applied_.one_shot_limit <= 0 && members > 1 &&
         bytes > (members <= 4 ? kReducedByFew : kReducedByMany);
}

/// How a tensor on the stage is written. The caller holds table_mutex_.
CopyKind Engine::direct_writing(std::size_t bytes) {
  // Measured by one thread at a time: usually nobody drives now, or it is known without.
  const std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) direct_writing_ = distance_.writing(bytes);
  return direct_writing_;
}

/// The caller holds table_mutex_. False: announce it.
bool Engine::arrive_direct(Operation& operation) {
  if (!options_.in_shared_memory) return false;
  const wire::Request& request = operation.request;
  if (operation.slot >= kDirectSlots || !DirectData::suits(operation)) return false;
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  const std::size_t members = ranks.size();
  if (session_.spans_hosts(ranks)) return false;
  const std::size_t bytes = DirectData::bytes(operation);
  operation.direct_bytes = bytes;
  if (bytes == 0 && request.kind != OpKind::kBarrier) return false;
  if (bytes > direct_limit(request.kind, members)) return false;
  if (arena_.watched().load() != 0 || arena_.joined().load() != 0) return false;
  // Those are reduced where they are.
  const bool reduces = request.kind == OpKind::kAllreduce && bytes > kDirectBytes;
  if (reduces && registration_ && registration_->has(operation)) return false;
  const CopyKind writing =
      direct_data_.stages(operation) ? direct_writing(bytes) : CopyKind::kCached;
  SlotRound& round = arena_.slot_round(operation.slot);
  const std::uint32_t current = round.round();
  const bool shares =
      request.kind == OpKind::kAllreduce && shares_sums(members, operation.direct_bytes);
  if (!direct_data_.publish(operation, current, writing, shares)) return false;
  const SlotRound::Arrival arrival =
      round.arrive_direct(static_cast<std::uint32_t>(members), current);
  operation.direct_round = current;
  operation.direct = arrival.accepted;
  if (!arrival.accepted) direct_data_.give_back(operation, current);
  return arrival.accepted;
}

/// Until something is to be done: the round is complete or overruled, or patience ends. Returns
/// when it began.
Nanos Engine::wait_direct(const Operation& operation, const SlotRound& round) const {
  GivingWay& way = GivingWay::of_this_thread();
  const Nanos began = monotonic_now();
  Nanos now = began;
  while (operation.direct && round.state(operation.direct_round) == SlotRound::State::kOpen) {
    const Nanos waited = now - began;
    if (waited > kPatience || operation.done.load(std::memory_order_acquire)) break;
    // Soon, even where there are enough CPUs: the awaited rank may have been put on this one.
    if (patience_.gives_way || waited > std::min(patience_.awake, kPolling)) {
      if (!way.pays(now)) break;
      now = way.yield(now);
      continue;
    }
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      if (round.state(operation.direct_round) != SlotRound::State::kOpen) return began;
      cpu_relax();
    }
    now = monotonic_now();
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
  direct_data_.give_back(*operation, operation->direct_round);
  operation->direct = false;
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
  push_announcement(
      wire::encode_announce_slot(operation->slot, operation->ticket, operation->submitted));
  // Always: another rank may have been counted as the last while this was not in the ring yet.
  coordinator_bell_.ring(Urgency::kUrgent);
}

bool Engine::direct_is_complete(const Operation& operation) const {
  return arena_.slot_round(operation.slot).state(operation.direct_round) ==
         SlotRound::State::kComplete;
}

/// Everybody has arrived. The caller holds table_mutex_.
void Engine::finish_direct(const OperationPtr& operation) {
  try {
    direct_data_.make_result(*operation, direct_writing_);
  } catch (const Error& error) {  // nobody waits for this rank's result
    operation->status = error.status();
  }
  direct_data_.release(*operation);
  const std::size_t members = sets_.ranks(operation->request.process_set).size();
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
  direct_data_.give_back(*operation, operation->direct_round);
  operation->direct = false;
  operation->slot = wire::kNoSlot;
  operation->ticket = next_ticket_++;
  operation->submitted = monotonic_now();
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
