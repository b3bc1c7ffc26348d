#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "engine/coordination/coordination.h"
#include "engine/drive/drive.h"
#include "engine/drive/progress.h"
#include "engine/engine.h"
#include "engine/job/blocked_callers.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/operation/completions.h"
#include "engine/recording/recording_control.h"
#include "engine/schedule/gpu_batches.h"
#include "engine/schedule/schedule_reader.h"
#include "engine/submission/submissions.h"
#include "engine/watch/job_answers.h"
#include "engine/watch/stall_reports.h"
#include "engine/watch/watch.h"
#include "observe/status/job_status.h"

namespace hvdtune {

/// The parts of an engine. Each part knows only earlier ones, except that RecordingControl calls
/// Watch through a function that it is given. A method's parameters show which lock it needs.
struct Engine::Parts {
  /// Meets the other ranks; starts no threads except helpers.
  explicit Parts(EngineOptions given);

  /// The result of Gpus::accept() for tensors on a GPU; null for those on the host.
  [[nodiscard]] std::shared_ptr<OnDevice> accepted(const Submission& submission) {
    if (submission.request.on_host()) return nullptr;
    return gpus.accept(submission.request, submission.streams);
  }
  [[nodiscard]] StepLog& steps() { return coordination ? coordination->steps() : no_steps; }

  const EngineOptions options;
  Job job;
  DriveMutex drive_mutex;
  BlockedCallers callers;
  JobStatus status;
  Gpus gpus;
  Completions completions;
  Submissions submissions;
  RecordingControl recording;
  StallReports stall_reports;
  Watch watch;
  const std::unique_ptr<Coordination> coordination;  // rank 0
  StepLog no_steps;                                  // of other ranks
  std::optional<JobAnswers> answers;                 // rank 0
  GpuBatches gpu_batches;
  ScheduleReader reader;
  Progress progress;
  Drive drive;
  std::atomic<bool> end_announced{false};  // by this rank
};

}  // namespace hvdtune
