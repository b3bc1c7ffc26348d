#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collective/communicator_factory.h"
#include "engine/execution/executor.h"
#include "engine/execution/staging.h"
#include "engine/job/blocked_callers.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/recording/recording_control.h"
#include "engine/schedule/gpu_batches.h"
#include "engine/submission/submissions.h"
#include "engine/watch/stack_query.h"
#include "engine/watch/stall_reports.h"
#include "observe/status/job_status.h"
#include "observe/status/step_log.h"

namespace hvdtune {

/// Reads the schedule, which is the same for all ranks, and executes it: runs batches, changes
/// settings and process sets, ends the job. Belongs to progress.
class ScheduleReader {
 public:
  /// The job's options that it needs.
  struct Options {
    CommunicatorFactory data_plane;
    Writing writing;
    int reduction_threads;  ///< as EngineOptions
  };
  /// The parts that it uses; all outlive it.
  struct Needs {
    const Job& job;
    Submissions& submissions;
    RecordingControl& recording;
    GpuBatches& gpu_batches;
    Gpus& gpus;
    JobStatus& status;
    StallReports& reports;
    StackQuery& stack_query;
    BlockedCallers& callers;
    StepLog& steps;  ///< ends with the job
  };

  ScheduleReader(const Needs& needs, Options options);

  /// Connects this rank with the others of its process sets; before read(). Data planes other than
  /// hvdtune's own wait for all ranks here. Throws what they throw.
  void connect();

  /// Executes all entries that the schedule has by now; returns whether there were any. A failure
  /// in a batch ends the job.
  bool read(const DriveLock& lock);
  /// Makes everything in flight, and everything submitted later, fail with `status`.
  void end_job(const DriveLock& lock, const Status& status);
  /// Engine::interrupted()
  [[nodiscard]] std::uint64_t interrupted() const { return interrupted_.load(); }
  /// Call it when the job has ended: stops helpers and GPUs.
  void stop(const DriveLock& lock);

 private:
  void execute(const DriveLock& lock, const wire::Schedule& batch);
  void reject(const DriveLock& lock, const wire::Schedule& schedule);
  // changes.cc
  [[nodiscard]] Tuning tuning_of(const wire::RuntimeSettings& settings) const;
  template <typename Waiting>
  void report_absence(Waiting& waiting);
  std::unique_ptr<Communicator> make_communicator(std::uint32_t set);
  std::unique_ptr<ShmRegistered> make_registered(std::uint32_t set);
  void change_settings(const DriveLock& lock, const wire::RuntimeSettings& settings);
  void add_set(const DriveLock& lock, const wire::Schedule& schedule);
  void remove_set(const DriveLock& lock, const wire::Schedule& schedule);

  const Job& job_;
  Submissions& submissions_;
  RecordingControl& recording_;
  GpuBatches& gpu_batches_;
  JobStatus& status_;
  StallReports& reports_;
  StackQuery& stack_query_;
  BlockedCallers& callers_;
  StepLog& steps_;
  const Options options_;
  std::uint64_t interrupt_ = 0;                 // read last
  std::atomic<std::uint64_t> interrupted_ = 0;  // the last before an executed batch
  BroadcastRing schedule_;
  std::shared_ptr<HelperPool> helpers_;
  Staging staging_;
  Executor executor_;
};

}  // namespace hvdtune
