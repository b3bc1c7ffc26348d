#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/coordination/coordinator.h"
#include "engine/job/blocked_callers.h"
#include "engine/job/job.h"
#include "engine/operation/tensor_entry.h"
#include "engine/recording/recording_control.h"
#include "observe/status/job_status.h"
#include "observe/stragglers/cpu_waits.h"
#include "observe/stragglers/straggler.h"

namespace hvdtune {

/// Rank 0: measures how long steps take, and which rank or host the others wait for. Reports it in
/// the log, the recording and the job's status. One thread at a time.
class StepWatch {
 public:
  /// All references outlive it.
  StepWatch(const Job& job, const StragglerOptions& options, RecordingControl& recording,
            JobStatus& status, const BlockedCallers& callers);

  /// A rank has announced a tensor.
  void announced(const TensorEntry& entry, int rank, Nanos time) {
    stragglers_.announced(rank, time);
    if (!is_of_all_ranks(entry)) stragglers_.apart(rank, time);
  }
  /// All ranks that the tensor waits for have announced it.
  void complete(const TensorEntry& entry);
  /// Call it after every publication: a step may have ended.
  void scheduled(const Coordinator& coordinator);

 private:
  [[nodiscard]] bool is_of_all_ranks(const TensorEntry& entry) const {
    return entry.members == static_cast<std::size_t>(job_.size);
  }
  [[nodiscard]] StragglerWatch::Awaited who_waits_for(const TensorEntry& entry) const;
  void tell(const StragglerNotice& notice, const std::string& name, const std::string& text,
            int rank, Nanos now);

  const Job& job_;
  const Nanos least_;  // duration of a step in which a rank can be late
  RecordingControl& recording_;
  JobStatus& status_;
  const BlockedCallers& callers_;
  StragglerWatch stragglers_;
  std::optional<CpuWaits> cpu_waits_;  // if ranks take turns on the CPUs
  std::uint64_t step_ = 0;             // the last that was examined
};

}  // namespace hvdtune
