#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "engine/drive/progress.h"
#include "engine/job/blocked_callers.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/operation/completions.h"
#include "engine/recording/recorder.h"

namespace hvdtune {

/// Decides which thread makes progress, and how it sleeps. A blocked caller makes progress itself;
/// otherwise the engine's thread does, which sleeps on the rank's doorbell while there is nothing
/// to do.
class Drive {
 public:
  /// All references outlive it.
  Drive(const Job& job, DriveMutex& mutex, BlockedCallers& callers, Progress& progress,
        Completions& completions, const Recorder& recorder)
      : job_(job),
        mutex_(mutex),
        callers_(callers),
        progress_(progress),
        completions_(completions),
        recorder_(recorder) {}

  /// Makes progress until done() or the deadline. The caller must not hold a lock; any thread.
  void until(const std::function<bool()>& done, Nanos deadline);

  /// Starts the thread, and pins it to `cpu` unless that is negative. Call it once, before stop().
  void start(int cpu);
  /// Ends the thread, and waits until it has ended. False if it does not run. One thread at a time.
  bool stop();
  /// Wakes the thread, because there is something to look at. Any thread.
  void wake_thread() { job_.doorbell.wake(Sleeper::kThread); }

 private:
  bool make(DriveLock& lock);
  void leave_to_thread();
  void run(int cpu);
  [[nodiscard]] bool poll_doorbell(std::uint32_t seen) const {
    return job_.patience.wait([this, seen] { return job_.doorbell.rings() != seen; });
  }

  const Job& job_;
  DriveMutex& mutex_;
  BlockedCallers& callers_;
  Progress& progress_;
  Completions& completions_;
  const Recorder& recorder_;
  // Until when the thread sleeps; kForever while it is awake, or leaves progress to callers.
  std::atomic<Nanos> thread_deadline_{kForever};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hvdtune
