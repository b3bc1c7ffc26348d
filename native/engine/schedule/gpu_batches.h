#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/execution/device_completions.h"
#include "engine/execution/device_executor.h"
#include "engine/execution/gpus.h"
#include "engine/job/blocked_callers.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/recording/recording_control.h"
#include "engine/submission/submissions.h"
#include "engine/watch/stall_reports.h"
#include "observe/status/job_status.h"

namespace hvdtune {

/// Batches of tensors on GPUs: started in the order of the schedule, finished when the GPU is done.
/// In between only the thread of DeviceCompletions waits. Belongs to progress.
class GpuBatches {
 public:
  /// All references outlive it.
  GpuBatches(const Job& job, Gpus& gpus, Submissions& submissions, RecordingControl& recording,
             JobStatus& status, StallReports& reports, BlockedCallers& callers);

  /// Gives a batch of `tensors` tensors and groups to the GPU. False: it must be executed on the
  /// host, as on all other members. `host` connects them. Throws Error(kAborted).
  bool launch(const DriveLock& lock, const wire::Schedule& schedule,
              const std::vector<OperationPtr>& batch, std::uint64_t tensors, Communicator& host);
  /// Finishes batches that GPUs have done since the last call; returns whether there were any.
  bool finish_done(const DriveLock& lock) {
    if (!completions_ || !completions_->any_done()) return false;
    finish_taken(lock);
    return true;
  }
  /// Waits for all batches that GPUs work on, and finishes them.
  void finish_all(const DriveLock& lock);
  /// Call finish_all() before.
  void remove_set(const DriveLock& lock, std::uint32_t set);
  /// Call it at the end of the job. Batches under way have some time to end.
  void stop(const DriveLock& lock);

  /// Engine's methods of these names. Any thread.
  [[nodiscard]] bool can_bypass_nccl() const { return can_bypass_nccl_; }
  [[nodiscard]] bool uses_nccl() const { return uses_nccl_; }

 private:
  [[nodiscard]] std::optional<std::string> why_over() const;
  void watch_gpu();
  void finish_taken(const DriveLock& lock);
  void finish_one(const DriveLock& lock, DeviceBatch& batch);
  void announce_done(const DriveLock& lock, DeviceBatch& batch);
  void trace(const DeviceBatch& batch, const DeviceTimes& times);

  const Job& job_;
  Gpus& gpus_;
  Submissions& submissions_;
  Recorder& recorder_;
  Timeline& timeline_;
  JobStatus& status_;
  StallReports& reports_;
  BlockedCallers& callers_;
  std::optional<DeviceExecutor> executor_;  // once there was a batch for it
  std::optional<DeviceCompletions> completions_;
  std::atomic<bool> can_bypass_nccl_ = false;
  std::atomic<bool> uses_nccl_ = false;
};

}  // namespace hvdtune
