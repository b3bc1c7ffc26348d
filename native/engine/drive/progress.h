#pragma once

#include "engine/coordination/coordination.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/schedule/gpu_batches.h"
#include "engine/schedule/schedule_reader.h"
#include "engine/submission/submissions.h"
#include "engine/watch/stack_query.h"

namespace hvdtune {

/// One step of a rank's work that advances operations: finish batches that GPUs have done, send
/// messages that found a ring full, coordinate on rank 0, read the schedule.
class Progress {
 public:
  /// All references outlive it. `coordination`: null except on rank 0.
  Progress(const Job& job, Submissions& submissions, Coordination* coordination,
           ScheduleReader& reader, GpuBatches& gpu_batches, StackQuery& stack_query)
      : job_(job),
        submissions_(submissions),
        coordination_(coordination),
        reader_(reader),
        gpu_batches_(gpu_batches),
        stack_query_(stack_query) {}

  /// Returns whether there was anything to do. An exception ends the job instead of leaving this
  /// function, since on the engine's own thread it would end the process without a message.
  bool make(const DriveLock& lock) noexcept;
  /// The least urgency of a ring that wakes a sleeper: while the coordinator collects a batch until
  /// a deadline, ordinary news can wait.
  [[nodiscard]] Urgency wake_threshold(const DriveLock& lock) const {
    return coordination_ != nullptr ? coordination_->threshold(lock) : Urgency::kNormal;
  }
  /// When make() must be called even if nobody rings; kForever = never.
  [[nodiscard]] Nanos next_deadline(const DriveLock& lock) const;

 private:
  bool try_make(const DriveLock& lock);
  bool flush_backlogs(const DriveLock& lock);

  const Job& job_;
  Submissions& submissions_;
  Coordination* const coordination_;
  ScheduleReader& reader_;
  GpuBatches& gpu_batches_;
  StackQuery& stack_query_;
};

}  // namespace hvdtune
