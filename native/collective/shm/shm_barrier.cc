#include "collective/shm/shm_barrier.h"

namespace hvdtune {
namespace {

// How long an abort can stay unnoticed if it happens between the last check and falling asleep.
constexpr Nanos kSleepSlice = 50 * kMillisecond;

}  // namespace

ShmBarrier::ShmBarrier(Arena& arena, BarrierCell& cell, int members, int index, Patience patience)
    : arena_(arena),
      cell_(cell),
      members_(static_cast<std::uint64_t>(members)),
      index_(index),
      patience_(patience) {
  // A communicator may be built on a cell that an earlier one has used (all members agree).
  generation_ = cell_.generation.load(std::memory_order_acquire);
}

void ShmBarrier::arrive() {
  ++generation_;
  cell_.arrivals[index_].generation.store(generation_, std::memory_order_relaxed);
  const std::uint64_t arrived = cell_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrived % members_ != 0) return;
  cell_.generation.store(generation_, std::memory_order_seq_cst);
  if (cell_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&cell_.generation, kWakeAll);
}

bool ShmBarrier::open() const {
  // Compare for difference, not for order: the counter may wrap around.
  const std::uint32_t now = cell_.generation.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(now - generation_) >= 0;
}

void ShmBarrier::throw_if_aborted() const {
  if (arena_.aborted()) throw Error(arena_.abort_status());
}

void ShmBarrier::report_absence(Nanos limit, AbsenceReport report) {
  absence_limit_ = limit;
  report_ = std::move(report);
}

void ShmBarrier::report_missing(Nanos waited) const {
  std::vector<int> missing;
  bool lower_arrived = false;
  for (int member = 0; member < static_cast<int>(members_); ++member) {
    const std::uint32_t at = cell_.arrivals[member].generation.load(std::memory_order_relaxed);
    if (static_cast<std::int32_t>(at - generation_) < 0) {
      missing.push_back(member);
    } else if (member < index_) {
      lower_arrived = true;
    }
  }
  if (!missing.empty() && !lower_arrived) report_(missing, waited);
}

void ShmBarrier::wait() {
  if (open()) return;
  if (!timed_) return wait_until_open();
  const Nanos began = monotonic_now();
  wait_until_open();
  waited_ += monotonic_now() - began;
}

void ShmBarrier::wait_until_open() {
  if (patience_.wait([this] { return open(); })) return;
  const Nanos began = monotonic_now();
  Nanos reported = began;
  cell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const std::uint32_t seen = cell_.generation.load(std::memory_order_seq_cst);
    if (open() || arena_.aborted()) break;
    const Nanos now = monotonic_now();
    if (now - reported >= absence_limit_) {
      report_missing(now - began);
      reported = now;
    }
    futex_wait(&cell_.generation, seen, now + kSleepSlice);
  }
  cell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  throw_if_aborted();
}

}  // namespace hvdtune
