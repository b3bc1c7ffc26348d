// Small allreduces that every member waits for: they do not go by way of the coordinator. Each
// member publishes its data next to the slot and arrives (transport/slot_round.h); when all have,
// each reduces all of it for itself. Nobody is woken, because nobody sleeps: whoever has waited too
// long announces the tensor after all, and so does everybody as soon as one has. Stalls, mismatches
// and joins are then dealt with as ever.
#include <sched.h>

#include <algorithm>
#include <array>

#include "base/cpu.h"
#include "collective/kernels.h"
#include "collective/shm_reduce.h"
#include "engine/averaging.h"
#include "engine/engine.h"

namespace hvdtune {
namespace {

// Longer than the others need to come when all are at the same place of the program, even with four
// ranks on a CPU; short enough not to matter where they are not.
constexpr Nanos kPatience = 500 * kMicrosecond;
constexpr Nanos kPolling = 5 * kMicrosecond;
constexpr int kPollsPerClockRead = 32;

bool small_enough(const wire::Request& request) {
  if (request.kind != OpKind::kAllreduce || request.grouped || request.tensors.size() != 1) {
    return false;
  }
  const std::int64_t bytes = request.bytes();
  return request.reduce_op != ReduceOp::kAdasum && bytes > 0 &&
         bytes <= static_cast<std::int64_t>(kDirectBytes);
}

}  // namespace

std::int64_t Engine::submit_blocking(Submission submission) {
  return submit_and_settle(std::move(submission));
}

std::int64_t Engine::submit_blocking(const InPlaceAllreduce& allreduce) {
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
    wait_direct(*operation, *round);
    const std::lock_guard lock(table_mutex_);
    settle_direct(operation);
  }
  return operation->handle;
}

/// The caller holds table_mutex_. False: announce it.
bool Engine::arrive_direct(Operation& operation) {
  const wire::Request& request = operation.request;
  if (operation.slot >= kDirectSlots || !small_enough(request)) return false;
  if (arena_.watched().load() != 0 || arena_.joined().load() != 0) return false;
  SlotRound& round = arena_.slot_round(operation.slot);
  const std::uint32_t current = round.round();
  const wire::TensorSpec& tensor = request.tensors.front();
  const auto bytes = static_cast<std::size_t>(tensor.bytes());
  std::byte* mine = arena_.direct_data(operation.slot, current, rank_, bytes);
  SegmentList data;
  data.add(const_cast<void*>(operation.memory.front().in), bytes);
  pack(data, 0, data.bytes(), mine, tensor.dtype, request.prescale);
  const auto members = static_cast<std::uint32_t>(sets_.ranks(request.process_set).size());
  const SlotRound::Arrival arrival = round.arrive_direct(members, current);
  operation.direct_round = arrival.round;
  operation.direct = arrival.accepted;
  return arrival.accepted;
}

/// Until something is to be done: the round is complete or overruled, or patience ends.
void Engine::wait_direct(const Operation& operation, const SlotRound& round) const {
  const Nanos began = monotonic_now();
  while (operation.direct && round.state(operation.direct_round) == SlotRound::State::kOpen) {
    const Nanos waited = monotonic_now() - began;
    if (waited > kPatience || operation.done.load(std::memory_order_acquire)) return;
    // Soon, even where there are enough CPUs: the awaited rank may have been put on this one.
    if (patience_.gives_way || waited > std::min(patience_.awake, kPolling)) {
      sched_yield();
      continue;
    }
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      if (round.state(operation.direct_round) != SlotRound::State::kOpen) return;
      cpu_relax();
    }
  }
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
  operation->direct = false;
  operation->ticket = next_ticket_++;
  push_announcement(
      wire::encode_announce_slot(operation->slot, operation->ticket, monotonic_now()));
  // Always: another rank may have been counted as the last while this was not in the ring yet.
  arena_.doorbell(0).ring(Urgency::kUrgent);
}

bool Engine::direct_is_complete(const Operation& operation) const {
  return arena_.slot_round(operation.slot).state(operation.direct_round) ==
         SlotRound::State::kComplete;
}

/// Everybody has arrived. The caller holds table_mutex_.
void Engine::finish_direct(const OperationPtr& operation) {
  const wire::Request& request = operation->request;
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  const wire::TensorSpec& tensor = request.tensors.front();
  const auto bytes = static_cast<std::size_t>(tensor.bytes());
  std::array<const void*, kMaxRanksPerHost> sources;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    sources[member] =
        arena_.direct_data(operation->slot, operation->direct_round, ranks[member], bytes);
  }
  const auto members = static_cast<int>(ranks.size());
  reduce_kernel(tensor.dtype, plain_reduction(request.reduce_op))(
      operation->memory.front().out, sources.data(), members,
      static_cast<std::size_t>(tensor.elements()), total_postscale(request, members));
  operation->direct = false;
  table_.finish(operation, true);
  operation->done.store(true, std::memory_order_release);
}

/// The slot is evicted while the operation waits in one of its rounds. The caller holds
/// table_mutex_.
void Engine::leave_direct(const OperationPtr& operation) {
  SlotRound& round = arena_.slot_round(operation->slot);
  if (!round.withdraw(operation->direct_round).accepted) return finish_direct(operation);
  operation->direct = false;
  operation->slot = wire::kNoSlot;
  operation->ticket = next_ticket_++;
  push_announcement(
      wire::encode_announce_request(operation->request, operation->ticket, monotonic_now()));
  arena_.doorbell(0).ring(Urgency::kUrgent);
}

/// Who completes a round knows it by counting arrivals: those who have joined count as arrived.
void Engine::on_absent(const TensorEntry& entry, std::size_t ranks) {
  if (entry.slot == wire::kNoSlot) return;
  arena_.slot_round(entry.slot)
      .announce(static_cast<std::uint32_t>(entry.members), static_cast<std::uint32_t>(ranks));
}

}  // namespace hvdtune
