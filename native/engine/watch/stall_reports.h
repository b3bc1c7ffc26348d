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

/// What this rank says if it is kept waiting and the coordinator's stall check (StallWatch) cannot
/// see it: all ranks have announced, or rank 0, which checks, may be the one that waits. Ends the
/// job if that lasts longer than the user allows. Any thread may call any method.
class StallReports {
 public:
  /// All references outlive it.
  StallReports(const Job& job, const StallOptions& limits, Recorder& recorder, JobStatus& status)
      : job_(job), limits_(limits), recorder_(recorder), status_(status) {}

  [[nodiscard]] const StallOptions& limits() const { return limits_; }

  /// This rank waits for `ranks` in the middle of `batch`; null: of a change of what batches run
  /// on.
  void absence(const std::vector<OperationPtr>* batch, const std::vector<int>& ranks, Nanos waited);
  /// Its GPU is not done with a batch of so many tensors. Which rank that waits for a GPU does not
  /// tell.
  void slow_gpu(const std::string& first_name, std::uint64_t tensors, Nanos waited);
  /// Rank 0 has not looked for stalls since then, while this rank waits for operations.
  void silence(std::vector<std::string> names, Nanos waited);

 private:
  const Job& job_;
  const StallOptions limits_;
  Recorder& recorder_;
  JobStatus& status_;
};

}  // namespace hvdtune
