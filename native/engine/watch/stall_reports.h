#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/job/stall_options.h"
#include "engine/operation/operation.h"
#include "engine/recording/recorder.h"
#include "observe/status/job_status.h"

namespace hvdtune {

/// Reports a wait of this rank that the coordinator's stall check (StallWatch) cannot see: because
/// all ranks have announced, or because rank 0 itself may be stuck. Ends the job if the wait lasts
/// longer than the user allows. Any thread may call any method.
class StallReports {
 public:
  /// All references outlive it.
  StallReports(const Job& job, const StallOptions& limits, Recorder& recorder, JobStatus& status)
      : job_(job), limits_(limits), recorder_(recorder), status_(status) {}

  [[nodiscard]] const StallOptions& limits() const { return limits_; }

  /// This rank waits for `ranks` in the middle of `batch`; null: in the middle of a change of
  /// settings or process sets.
  void absence(const std::vector<OperationPtr>* batch, const std::vector<int>& ranks, Nanos waited);
  /// Its GPU is not done with a batch of `tensors` tensors. The GPU does not say which rank it
  /// waits for.
  void slow_gpu(const std::string& first_name, std::uint64_t tensors, Nanos waited);
  /// The batch of the last slow_gpu() is under way no more.
  void gpu_done() { status_.stall_over(JobStatus::StallCause::kGpu); }
  /// Rank 0 has not checked for stalls for `waited`, while this rank waits for operations.
  void silence(std::vector<std::string> names, Nanos waited);

 private:
  const Job& job_;
  const StallOptions limits_;
  Recorder& recorder_;
  JobStatus& status_;
};

}  // namespace hvdtune
