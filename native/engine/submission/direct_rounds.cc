#include "engine/submission/direct_rounds.h"

#include <algorithm>

#include "base/cpu/cpu.h"

namespace hvdtune {
namespace {

// Longer than the others need to arrive if all are at the same place in the program, even with four
// ranks per CPU; short enough not to matter if they are not.
constexpr Nanos kPatience = 500 * kMicrosecond;
constexpr Nanos kPolling = 5 * kMicrosecond;
constexpr int kPollsPerClockRead = 32;
// Up to this size, reading all members' data is cheaper than the coordinator's additional steps.
// Two members read the same amount either way.
constexpr std::size_t kDirectLimit = 16 << 10;
// If ranks take turns on a CPU, longer tensors also bypass the coordinator. Up to this size, it is
// cheaper if every member reads all members' data than to copy a result once more.
constexpr std::size_t kReducedByFew = 64 << 10;  // up to four members
constexpr std::size_t kReducedByMany = 16 << 10;
// Longer data of all members together is no longer in a cache when it is read.
constexpr std::size_t kMostShared = 4 << 20;
constexpr std::size_t kBroadcastLimit = 256 << 10;

}  // namespace

DirectRounds::DirectRounds(const Job& job, const ProcessSets& sets,
                           const std::optional<Registration>& registration,
                           const wire::RuntimeSettings& settings, Writing writing,
                           DriveMutex& drive_mutex)
    : job_(job),
      sets_(sets),
      registration_(registration),
      settings_(settings),
      drive_mutex_(drive_mutex),
      data_(job.arena, sets, job.rank),
      distance_(job.arena.distance(0), static_cast<int>(job.session.local.size()),
                job.session.local_index(job.rank)) {
  distance_.choose(writing);
}

/// Bytes of the longest tensor of `members` members that bypasses the coordinator. In such an
/// allreduce, each member reads all others' data, while with the coordinator they share the work.
/// In other operations no member reads more either way; but in a broadcast no member copies
/// anything out before the root has copied all of it in.
std::size_t DirectRounds::limit(OpKind kind, std::size_t members) const {
  if (kind == OpKind::kBroadcast) return std::min(data_.longest(), kBroadcastLimit);
  if (kind != OpKind::kAllreduce) return data_.longest();
  if (settings_.one_shot_limit > 0) {
    return std::clamp(static_cast<std::size_t>(settings_.one_shot_limit), kDirectBytes,
                      data_.longest());
  }
  if (job_.arena.oversubscribed() && members > 1) {
    return std::min(data_.longest_shared(), kMostShared / members);
  }
  return members <= 2 ? data_.longest() : kDirectLimit;
}

/// Whether this many members share the work of a tensor on the stage.
bool DirectRounds::shares_sums(std::size_t members, std::size_t bytes) const {
  return job_.arena.oversubscribed() && settings_.one_shot_limit <= 0 && members > 1 &&
         bytes > (members <= 4 ? kReducedByFew : kReducedByMany);
}

/// How to write a tensor on the stage.
CopyKind DirectRounds::writing(std::size_t bytes) {
  // Only one thread may measure at a time: usually no other thread drives now, or the answer is
  // known already.
  const DriveLock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) writing_ = distance_.writing(bytes);
  return writing_;
}

const SlotRound* DirectRounds::arrive(const TableLock& /*held*/, Operation& operation) {
  if (!job_.in_shared_memory) return nullptr;
  const wire::Request& request = operation.request;
  if (operation.slot >= kDirectSlots || !DirectData::suits(operation)) return nullptr;
  const std::vector<int>& ranks = sets_.ranks(request.process_set);
  const std::size_t members = ranks.size();
  if (job_.session.spans_hosts(ranks)) return nullptr;
  const std::size_t bytes = DirectData::bytes(operation);
  operation.direct_bytes = bytes;
  if (bytes == 0 && request.kind != OpKind::kBarrier) return nullptr;
  if (bytes > limit(request.kind, members)) return nullptr;
  if (job_.arena.watched().load() != 0 || job_.arena.joined().load() != 0) return nullptr;
  // Registered tensors are reduced in place.
  const bool reduces = request.kind == OpKind::kAllreduce && bytes > kDirectBytes;
  if (reduces && registration_ && registration_->has(operation)) return nullptr;
  const CopyKind copy = data_.stages(operation) ? writing(bytes) : CopyKind::kCached;
  SlotRound& round = job_.arena.slot_round(operation.slot);
  const std::uint32_t current = round.round();
  const bool shares =
      request.kind == OpKind::kAllreduce && shares_sums(members, operation.direct_bytes);
  if (!data_.publish(operation, current, copy, shares)) return nullptr;
  const SlotRound::Arrival arrival =
      round.arrive_direct(static_cast<std::uint32_t>(members), current);
  operation.direct_round = current;
  operation.direct = arrival.accepted;
  if (!arrival.accepted) data_.give_back(operation, current);
  return arrival.accepted ? &round : nullptr;
}

Nanos DirectRounds::wait(const Operation& operation, const SlotRound& round) const {
  GivingWay& way = GivingWay::of_this_thread();
  const Nanos began = monotonic_now();
  Nanos now = began;
  while (operation.direct && round.state(operation.direct_round) == SlotRound::State::kOpen) {
    const Nanos waited = now - began;
    if (waited > kPatience || operation.done.load(std::memory_order_acquire)) break;
    // Give way soon, even if there are enough CPUs: the awaited rank may have been placed on this
    // one.
    if (job_.patience.gives_way || waited > std::min(job_.patience.awake, kPolling)) {
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

bool DirectRounds::settle(const TableLock& /*held*/, Operation& operation) {
  SlotRound& round = job_.arena.slot_round(operation.slot);
  const auto members = static_cast<std::uint32_t>(members_of(operation));
  const bool left = round.change_to_announced(operation.direct_round, members).accepted;
  if (left) {
    give_up(operation);
  } else {
    finish(operation);
  }
  return !left;
}

bool DirectRounds::leave(const TableLock& /*held*/, Operation& operation) {
  const bool left = job_.arena.slot_round(operation.slot).withdraw(operation.direct_round).accepted;
  if (left) {
    give_up(operation);
  } else {
    finish(operation);
  }
  return !left;
}

bool DirectRounds::finish_if_complete(const TableLock& /*held*/, Operation& operation) {
  const SlotRound& round = job_.arena.slot_round(operation.slot);
  if (round.state(operation.direct_round) != SlotRound::State::kComplete) return false;
  finish(operation);
  return true;
}

void DirectRounds::give_up(Operation& operation) {
  data_.give_back(operation, operation.direct_round);
  operation.direct = false;
}

/// Finishes an operation after all members have arrived.
void DirectRounds::finish(Operation& operation) {
  try {
    data_.make_result(operation, writing_);
  } catch (const Error& error) {  // no other rank waits for this rank's result
    operation.status = error.status();
  }
  data_.release(operation);
  // For the straggler watch, since the coordinator does not see this operation.
  if (members_of(operation) < static_cast<std::size_t>(job_.size)) {
    job_.arena.apart(job_.rank).store(monotonic_now(), std::memory_order_relaxed);
  }
  operation.direct = false;
}

}  // namespace hvdtune
