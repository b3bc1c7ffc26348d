// Who makes progress, and how it sleeps: the half of Engine that deals with threads.
#include <chrono>
#include <optional>

#include "base/cpu.h"
#include "base/cpu_wait.h"
#include "base/log.h"
#include "engine/engine.h"

namespace hvdtune {
namespace {

// While a caller drives, the thread only looks now and then whether it is needed again.
constexpr Nanos kStandBack = 100 * kMillisecond;
// A full ring: the reader is busy; there is no doorbell for "room again".
constexpr Nanos kRetryFullRing = 200 * kMicrosecond;
// Until evicted slots are released, announcements may come without a ring (Engine::announce); and
// nothing rings when the slowest rank has come past the removal of a process set.
constexpr Nanos kEvictionPoll = 5 * kMillisecond;

}  // namespace

/// While the coordinator collects a batch until a deadline, ordinary news can wait.
Urgency Engine::wake_threshold() const {
  return coordinator_ && coordinator_->has_ready() ? Urgency::kUrgent : Urgency::kNormal;
}

/// The caller holds drive_mutex_.
Nanos Engine::next_deadline() {
  Nanos deadline = kForever;
  if (over_) return deadline;
  if (coordinator_) {
    deadline = std::min(coordinator_->deadline(), stalls_->deadline());
    const Nanos now = monotonic_now();
    if (!schedule_backlog_.empty()) deadline = std::min(deadline, now + kRetryFullRing);
    if (coordinator_->awaits_release()) deadline = std::min(deadline, now + kEvictionPoll);
  }
  const std::lock_guard lock(table_mutex_);
  if (!announce_backlog_.empty()) {
    deadline = std::min(deadline, monotonic_now() + kRetryFullRing);
  }
  return deadline;
}

bool Engine::poll_doorbell(std::uint32_t seen) const {
  return patience_.wait([this, seen] { return doorbell_.rings() != seen; });
}

/// A blocked caller makes the progress itself: no other thread has to be woken for it.
void Engine::drive_until(const std::function<bool()>& done, Nanos deadline) {
  // A blocked caller does not compute, whatever it waits for a CPU as it drives. Asking takes a
  // microsecond, so it is asked only where ranks take turns, and waits take many times as long.
  const std::optional<Nanos> waited =
      arena_.oversubscribed() && recorder_.active() ? cpu_wait_of_this_thread() : std::nullopt;
  callers_.fetch_add(1, std::memory_order_seq_cst);
  while (!done() && monotonic_now() < deadline) {
    std::unique_lock lock(drive_mutex_, std::defer_lock);
    // Another thread is in the middle of a batch, perhaps the one this caller waits for.
    if (!lock.try_lock_for(std::chrono::milliseconds(50))) continue;
    doorbell_.arm(Urgency::kNone, Sleeper::kCaller);
    while (!done() && progress()) {
    }
    if (done()) break;
    std::uint32_t seen = doorbell_.rings();
    if (progress()) continue;
    lock.unlock();
    if (poll_doorbell(seen)) continue;
    lock.lock();
    seen = doorbell_.rings();
    doorbell_.arm(wake_threshold(), Sleeper::kCaller);
    // Another caller may have finished this one's operation while it polled.
    if (done() || progress()) continue;
    const Nanos wake_at = std::min(deadline, next_deadline());
    lock.unlock();
    doorbell_.sleep(seen, Sleeper::kCaller, wake_at);
  }
  if (callers_.fetch_sub(1, std::memory_order_seq_cst) == 1) {
    leave_to_thread();
  } else {
    doorbell_.wake(Sleeper::kCaller);  // another caller sleeps on: it arms the doorbell anew
  }
  if (waited)
    capture::Capture::waited_while_blocked(cpu_wait_of_this_thread().value_or(*waited) - *waited);
}

/// Operations are done: one of them may be what another caller sleeps for.
void Engine::wake_other_callers() {
  if (callers_.load(std::memory_order_seq_cst) > 1) doorbell_.wake(Sleeper::kCaller);
}

/// The last caller goes: rings are for the thread again. If it sleeps, work that came meanwhile has
/// not woken it, and it knows nothing of an earlier deadline.
void Engine::leave_to_thread() {
  bool work = false;
  {
    const std::lock_guard lock(drive_mutex_);
    if (callers_.load(std::memory_order_seq_cst) > 0) return;  // a new one arms it for itself
    doorbell_.arm(wake_threshold(), Sleeper::kThread);
    work = progress() || next_deadline() < thread_deadline_;
  }
  if (work) doorbell_.wake(Sleeper::kThread);
}

void Engine::thread_main() {
  if (options_.affinity >= 0 && !pin_this_thread(options_.affinity)) {
    HVD_LOG_RANK(kError, rank_) << "cannot pin the communication thread to CPU "
                                << options_.affinity << " (HOROVOD_THREAD_AFFINITY)";
  }
  while (!stop_) {
    // Before the look for callers: the last of them sees it when it goes, and hands its deadline
    // over.
    thread_deadline_ = kForever;
    std::uint32_t seen = doorbell_.rings();
    if (callers_.load(std::memory_order_seq_cst) > 0) {
      doorbell_.sleep(seen, Sleeper::kThread, monotonic_now() + kStandBack);
      continue;
    }
    std::unique_lock lock(drive_mutex_);
    // Under the lock: a caller that came meanwhile may already sleep on what it has armed.
    if (callers_.load(std::memory_order_seq_cst) > 0) continue;
    doorbell_.arm(Urgency::kNone, Sleeper::kThread);
    while (callers_.load(std::memory_order_seq_cst) == 0 && progress()) {
    }
    if (callers_.load(std::memory_order_seq_cst) > 0) continue;
    seen = doorbell_.rings();
    doorbell_.arm(wake_threshold(), Sleeper::kThread);
    if (stop_ || progress()) continue;
    thread_deadline_ = next_deadline();
    lock.unlock();
    doorbell_.sleep(seen, Sleeper::kThread, thread_deadline_);
  }
}

}  // namespace hvdtune
