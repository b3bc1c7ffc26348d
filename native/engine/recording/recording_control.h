#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/recording/recorder.h"
#include "engine/recording/recording_options.h"
#include "engine/submission/submissions.h"
#include "observe/trace/file_claim.h"
#include "observe/trace/timeline.h"

namespace hvdtune {

/// Controls when the job is recorded, and into which files. Any rank may ask for a recording to
/// begin or to end; rank 0 decides, and all ranks follow at one place in the schedule.
///
/// Methods with a DriveLock belong to progress; any thread may call the others.
class RecordingControl {
 public:
  /// `steps_watched`: every step must be seen, so no operation bypasses the coordinator, whether
  /// the job is recorded or not. Calls `compare_clocks` when a recording begins on a rank whose
  /// clock is not rank 0's. All references outlive it.
  RecordingControl(const Job& job, DriveMutex& drive_mutex, Submissions& submissions,
                   RecordingOptions options, bool steps_watched,
                   std::function<void()> compare_clocks);

  /// The targets of recordings.
  Timeline& timeline() { return timeline_; }
  Recorder& recorder() { return recorder_; }

  // ---- for callers; see Engine's methods -------------------------------------------------------

  /// Engine::ask_timeline()
  std::uint64_t ask(const wire::TimelineOrder& order);
  /// Whether that request was fulfilled or refused.
  [[nodiscard]] bool answered(std::uint64_t number) const { return answered_ >= number; }
  /// Waits until files that have ended are complete.
  void join_ended();
  /// Engine::timeline_problem()
  std::string problem();
  bool is_recorded();
  /// Engine::recorded_file()
  std::string file();
  void mark_step();
  void stop_watching_steps();
  /// From now on no operation bypasses the coordinator. Rank 0.
  void watch_for_good(const DriveLock& lock) {
    watched_for_good_ = true;
    watch_traffic(lock);
  }
  bool await_recordings(Nanos deadline);
  [[nodiscard]] const std::vector<std::string>& recorded() const { return recorded_; }
  /// Call it at the end of the job, when nobody makes progress any more.
  void stop();

  // ---- rank 0 (decisions.cc) --------------------------------------------------------------------

  /// Decides about the request of a rank (-1: of the settings). The caller publishes the result,
  /// for all ranks, before it calls this again. Either one rank asks, or all ranks make the same
  /// requests in the same order: if others have made a request that this rank has not made yet,
  /// this rank's request counts as the same.
  wire::Schedule decide(const DriveLock& lock, int rank, wire::TimelineOrder order);
  /// At the start of the job: a recording to `path` that begins with it, or none if `path` is
  /// empty.
  std::optional<wire::Schedule> decide_first(const DriveLock& lock, const std::string& path,
                                             bool mark_cycles);
  /// Checks whether a recording has failed meanwhile.
  void look_for_failure(const DriveLock& lock) {
    if (!failed_.load(std::memory_order_relaxed)) return;
    failed_.store(false, std::memory_order_relaxed);
    watch_traffic(lock);
  }
  [[nodiscard]] bool marks_cycles(const DriveLock& /*held*/) const { return cycles_marked_; }
  /// Whether this rank records when other ranks announce tensors, because they do not record. The
  /// caller, or a function that calls it, holds the DriveLock.
  [[nodiscard]] bool records_arrivals() const { return records_arrivals_ && recorder_.active(); }

  // ---- every rank -------------------------------------------------------------------------------

  /// Call it before anything is submitted. If the settings ask for a recording (`wanted`), waits
  /// until rank 0 has decided whether it begins with the job. Throws what MeetingOptions::on_wait
  /// throws, for example after a signal.
  void await_decision(bool wanted);
  /// Applies rank 0's decision, an entry of the schedule.
  void apply(const DriveLock& lock, const wire::Schedule& schedule);

 private:
  using Action = wire::TimelineOrder::Action;
  static constexpr std::string_view kCompressed = ".gz";

  /// The state after the last order, which rank 0 may not have read in the schedule itself yet.
  struct Ordered {
    bool recorded = false;
    std::string path;
  };

  void decide_start(const DriveLock& lock, wire::TimelineOrder& order);
  std::string claim_file(const DriveLock& lock, wire::TimelineOrder& order);
  void carry_out(const DriveLock& lock, wire::TimelineOrder& order);
  bool is_new_toggle(const DriveLock& lock, int rank);
  [[nodiscard]] bool will_be_recorded(const DriveLock& lock);
  void watch_traffic(const DriveLock& lock);
  void start_capture(const DriveLock& lock, const wire::TimelineOrder& order);
  void on_ended(const std::string& problem, bool recorded);
  void set_file(std::string file);

  const Job& job_;
  DriveMutex& drive_mutex_;
  Submissions& submissions_;
  const RecordingOptions options_;
  const std::function<void()> compare_clocks_;
  std::atomic<bool> failed_{false};  // a recording has failed, and this was not handled yet
  Timeline timeline_;
  Recorder recorder_;

  // Progress.
  bool steps_watched_;
  bool watched_for_good_ = false;
  bool cycles_marked_ = false;
  bool records_arrivals_ = false;
  std::string recorded_path_;          // rank 0's file of the last capture
  std::vector<std::string> recorded_;  // the final names of all
  // Rank 0's.
  std::set<std::string> compressed_;         // files to compress when finishing
  std::vector<wire::TimelineOrder> wishes_;  // of all ranks
  std::vector<std::size_t> heard_;           // how many of them each rank has made
  std::optional<Ordered> ordered_;
  FileClaim claim_;                               // until its recording has begun
  std::map<std::string, std::string> asked_for_;  // requested file, by the file used instead
  std::uint64_t orders_made_ = 0;
  std::uint64_t orders_read_ = 0;
  std::vector<std::uint64_t> toggles_;  // by signal, of each rank
  Nanos toggled_ = 0;

  std::mutex mutex_;  // of requests; a thread that holds it may also take the one of Submissions
  std::uint64_t asked_ = 0;
  std::string problem_;
  std::string file_;  // rank 0: of the last recording
  std::atomic<std::uint64_t> answered_{0};
};

}  // namespace hvdtune
