#include "transport/messengers/mpi_progress.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/threads/signals_blocked.h"

namespace hvdtune {
namespace {

constexpr Nanos kLeastPause = 2 * kMillisecond;
constexpr Nanos kMostPause = 50 * kMillisecond;

}  // namespace

void MpiProgress::enter() {
  std::unique_lock lock(mutex_);
  ++users_;
  if (running_) return;
  if (thread_.joinable()) {
    lock.unlock();
    thread_.join();  // it has ended by itself
    lock.lock();
  }
  running_ = true;
  resting_ = false;
  process_ = getpid();
  const SignalsBlocked signals;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "hvdtune-mpi");
}

void MpiProgress::leave() {
  const std::lock_guard lock(mutex_);
  --users_;
  until_ = monotonic_now() + linger_;
}

void MpiProgress::rest() {
  if (process_ != getpid()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    resting_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MpiProgress::run() {
  std::unique_lock lock(mutex_);
  Nanos pause = kLeastPause;
  std::uint64_t seen = calls_;
  while (!resting_ && (users_ > 0 || monotonic_now() < until_)) {
    changed_.wait_for(lock, std::chrono::nanoseconds(pause), [this] { return resting_; });
    if (resting_) break;
    if (seen != calls_) {  // another thread has called meanwhile
      seen = calls_;
      pause = kLeastPause;
      continue;
    }
    if (!advance_()) break;
    pause = std::min(pause * 2, kMostPause);
  }
  running_ = false;
}

}  // namespace hvdtune
