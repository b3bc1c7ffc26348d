#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/coordination/coordinator.h"
#include "engine/coordination/stall_watch.h"
#include "engine/coordination/step_watch.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/job/process_sets.h"
#include "engine/operation/completions.h"
#include "engine/recording/recording_control.h"
#include "observe/status/job_status.h"

namespace hvdtune {

/// Rank 0's part of progress: reads the announcements of all ranks, lets Coordinator decide, and
/// publishes the schedule, which all ranks read, including this one. Any thread may call methods
/// without a DriveLock.
class Coordination final : private CoordinatorObserver {
 public:
  /// All references outlive it.
  Coordination(const Job& job, RecordingControl& recording, JobStatus& status,
               const BlockedCallers& callers, const Completions& completions,
               const CoordinatorOptions& options, const ProcessSets& sets,
               const wire::RuntimeSettings& settings, const StallOptions& stall,
               const StragglerOptions& straggler);

  /// One turn: reads all announcements made until now, and publishes what is due. Returns whether
  /// there was anything. Must not be called after the end of the job is published.
  bool coordinate(const DriveLock& lock);
  /// Publishes these after all earlier ones; entries for which the schedule has no room wait here.
  void publish(const DriveLock& lock, const std::vector<wire::Schedule>& schedules);
  /// Publishes waiting entries, as far as there is room; returns whether there were any.
  bool flush(const DriveLock& lock);

  /// When coordinate() or flush() must be called again even if nobody rings; kForever = never.
  [[nodiscard]] Nanos deadline(const DriveLock& lock) const;
  /// The least urgency of news that must be read before deadline().
  [[nodiscard]] Urgency threshold(const DriveLock& /*held*/) const {
    return coordinator_.has_ready() ? Urgency::kUrgent : Urgency::kNormal;
  }

  /// See Coordinator::change_settings().
  std::uint64_t change_settings(const DriveLock& /*held*/, const SettingsChange& change) {
    return coordinator_.change_settings(change);
  }

  /// See Coordinator::interrupt().
  void interrupt(const DriveLock& /*held*/, std::uint64_t number) {
    coordinator_.interrupt(number);
  }

  StepLog& steps() { return coordinator_.steps(); }
  /// Counts the start and the end of every turn, so it is odd during a turn.
  [[nodiscard]] std::uint64_t looks() const { return looks_.load(); }

 private:
  struct Unpublished {
    std::string bytes;
    wire::ScheduleType type;
  };

  void release_what_all_have_passed(std::uint64_t position);
  bool read_announcements(const DriveLock& lock);
  void hear(const DriveLock& lock, int rank, std::string_view bytes, Nanos now);
  void announce_end(const DriveLock& lock, const std::string& why);
  void check_stalls(const DriveLock& lock, Nanos now);

  // CoordinatorObserver
  void on_first_ready(const TensorEntry& entry, Nanos time) override;
  void on_rank_ready(const TensorEntry& entry, int rank, Nanos time) override;
  void on_all_ready(const TensorEntry& entry, Nanos time) override;
  void on_absent(const TensorEntry& entry, std::size_t ranks) override;
  void on_batch(std::uint64_t serial, Nanos closed, Nanos first_ready) override {
    recorder_.closed(serial, closed, first_ready);
  }

  const Job& job_;
  RecordingControl& recording_;
  Recorder& recorder_;
  Timeline& timeline_;
  JobStatus& status_;
  const Completions& completions_;  // this rank's
  BroadcastRing schedule_;
  Coordinator coordinator_;
  StallWatch stalls_;
  StepWatch step_watch_;
  std::vector<MessageRing> announcements_;  // by rank
  std::vector<bool> other_clock_;           // by rank: whether its clock is another one
  std::deque<Unpublished> backlog_;
  std::vector<std::uint64_t> blocked_on_;  // kept for its memory
  std::atomic<std::uint64_t> looks_{0};
};

}  // namespace hvdtune
