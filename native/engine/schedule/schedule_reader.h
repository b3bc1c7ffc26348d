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

/// Reads the schedule, which is the same for all ranks, and does what it says: executes batches,
/// changes settings and process sets, ends the job. Belongs to progress.
class ScheduleReader {
 public:
  /// What of the job's options it needs.
  struct Options {
    CommunicatorFactory data_plane;
    Writing writing;
    int reduction_threads;  ///< as EngineOptions
  };
  /// What it works with; all of it outlives it.
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

  /// Connects this rank with the others of its process sets; before read(). Other data planes wait
  /// for all ranks here. Throws what they throw.
  void connect();

  /// Does all that the schedule has for this rank by now; whether there was anything. What goes
  /// wrong in a batch ends the job.
  bool read(const DriveLock& lock);
  /// Everything in flight fails with `status`, and so does everything submitted later.
  void end_job(const DriveLock& lock, const Status& status);
  /// Engine::interrupted()
  [[nodiscard]] std::uint64_t interrupted() const { return interrupted_.load(); }
  /// When the job has ended: helpers and GPUs stop.
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
  std::atomic<std::uint64_t> interrupted_ = 0;  // before a batch that has been executed
  BroadcastRing schedule_;
  std::shared_ptr<HelperPool> helpers_;
  Staging staging_;
  Executor executor_;
};

}  // namespace hvdtune
