#include "engine/drive/drive.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/cpu/cpu.h"
#include "base/cpu/cpu_wait.h"
#include "base/cpu/time_slice.h"
#include "base/log.h"

namespace hvdtune {
namespace {

// How long a caller waits for another thread's batch before it checks whether its own operation is
// done.
constexpr Nanos kPatience = 50 * kMillisecond;
// While a caller drives, the thread only checks at this interval whether it is needed again.
constexpr Nanos kStandBack = 100 * kMillisecond;

}  // namespace

/// Makes progress, and calls the continuations of finished operations. Returns whether anything was
/// done; releases `lock` during the calls.
bool Drive::make(DriveLock& lock) {
  const bool worked = progress_.make(lock);
  if (!completions_.any()) return worked;
  lock.unlock();
  completions_.tell();
  lock.lock();
  return true;
}

/// This needs no wake-up of another thread.
void Drive::until(const std::function<bool()>& done, Nanos deadline) {
  // A blocked caller does not compute, so its waits for a CPU while it drives do not count. Reading
  // them takes a microsecond, so this is done only if ranks take turns, since waits are much longer
  // then.
  std::optional<Nanos> waited;
  if (job_.arena.oversubscribed() && recorder_.active()) waited = cpu_wait_of_this_thread();
  callers_.come();
  while (!done() && monotonic_now() < deadline) {
    DriveLock lock(mutex_, std::defer_lock);
    // Another thread is in the middle of a batch, perhaps the one this caller waits for.
    const Nanos patience = std::min(kPatience, deadline - monotonic_now());
    if (!lock.try_lock_for(std::chrono::nanoseconds(patience))) continue;
    job_.doorbell.arm(Urgency::kNone, Sleeper::kCaller);
    while (!done() && monotonic_now() < deadline && make(lock)) {
    }
    if (done()) break;
    std::uint32_t seen = job_.doorbell.rings();
    if (make(lock)) continue;
    lock.unlock();
    if (poll_doorbell(seen)) continue;
    lock.lock();
    seen = job_.doorbell.rings();
    job_.doorbell.arm(progress_.wake_threshold(lock), Sleeper::kCaller);
    // Another caller may have finished this one's operation while it polled.
    if (done() || make(lock)) continue;
    const Nanos wake_at = std::min(deadline, progress_.next_deadline(lock));
    lock.unlock();
    job_.doorbell.sleep(seen, Sleeper::kCaller, wake_at);
  }
  if (callers_.go()) {
    leave_to_thread();
  } else {
    // Another caller still sleeps and must arm the doorbell again.
    job_.doorbell.wake(Sleeper::kCaller);
  }
  if (waited) {
    const std::optional<Nanos> after = cpu_wait_of_this_thread();
    if (after) capture::Capture::waited_while_blocked(*after - *waited);
  }
}

/// The last caller leaves: from now on rings must wake the thread. If it sleeps, work that arrived
/// meanwhile has not woken it, and it does not know of an earlier deadline.
void Drive::leave_to_thread() {
  bool work = false;
  {
    const DriveLock lock(mutex_);
    if (callers_.any()) return;  // a new caller arms it for itself
    job_.doorbell.arm(progress_.wake_threshold(lock), Sleeper::kThread);
    work = progress_.make(lock) || progress_.next_deadline(lock) < thread_deadline_;
  }
  completions_.tell();
  if (work) wake_thread();
}

void Drive::start(int cpu) {
  thread_ = std::thread([this, cpu] {
    give_way_to_others();
    run(cpu);
  });
  pthread_setname_np(thread_.native_handle(), "hvdtune");
}

bool Drive::stop() {
  if (!thread_.joinable()) return false;
  stop_ = true;
  wake_thread();
  thread_.join();
  return true;
}

void Drive::run(int cpu) {
  if (cpu >= 0 && !pin_this_thread(cpu)) {
    HVD_LOG_RANK(kError, job_.rank)
        << "cannot pin the communication thread to CPU " << cpu << " (HOROVOD_THREAD_AFFINITY)";
  }
  while (!stop_) {
    // Set before checking for callers: the last caller to leave sees this, and hands over its
    // deadline.
    thread_deadline_ = kForever;
    std::uint32_t seen = job_.doorbell.rings();
    if (callers_.any()) {
      job_.doorbell.sleep(seen, Sleeper::kThread, monotonic_now() + kStandBack);
      continue;
    }
    DriveLock lock(mutex_);
    // Under the lock: a caller that entered meanwhile may already sleep on the doorbell that it has
    // armed.
    if (callers_.any()) continue;
    job_.doorbell.arm(Urgency::kNone, Sleeper::kThread);
    while (!callers_.any() && make(lock)) {
    }
    if (callers_.any()) continue;
    seen = job_.doorbell.rings();
    job_.doorbell.arm(progress_.wake_threshold(lock), Sleeper::kThread);
    if (stop_ || make(lock)) continue;
    thread_deadline_ = progress_.next_deadline(lock);
    lock.unlock();
    job_.doorbell.sleep(seen, Sleeper::kThread, thread_deadline_);
  }
}

}  // namespace hvdtune
