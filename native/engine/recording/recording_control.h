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

/// When the job is recorded, and what is left of it. Any rank may ask for a recording to begin or
/// to end; rank 0 decides, and all ranks do it at one place in the schedule.
///
/// What takes a DriveLock belongs to progress; any thread may call the rest.
class RecordingControl {
 public:
  /// `steps_watched`: somebody is to see every step, so nothing goes past the coordinator, whether
  /// it is recorded or not. `compare_clocks` is called when a recording begins on a rank whose
  /// clock is not rank 0's. All references outlive it.
  RecordingControl(const Job& job, DriveMutex& drive_mutex, Submissions& submissions,
                   RecordingOptions options, bool steps_watched,
                   std::function<void()> compare_clocks);

  /// What is recorded goes to these.
  Timeline& timeline() { return timeline_; }
  Recorder& recorder() { return recorder_; }

  // ---- callers; what Engine says of its methods ------------------------------------------------

  /// Engine::ask_timeline()
  std::uint64_t ask(const wire::TimelineOrder& order);
  /// Whether that wish is fulfilled, or has come to nothing.
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
  /// From now on nothing goes past the coordinator. Rank 0.
  void watch_for_good(const DriveLock& lock) {
    watched_for_good_ = true;
    watch_traffic(lock);
  }
  bool await_recordings(Nanos deadline);
  [[nodiscard]] const std::vector<std::string>& recorded() const { return recorded_; }
  /// At the end of the job, when nobody makes progress any more.
  void stop();

  // ---- rank 0 (decisions.cc) --------------------------------------------------------------------

  /// What comes of the wish of a rank (-1: of the settings). The caller publishes what it returns,
  /// for all ranks, before it calls this again. Either one rank asks, or all ranks ask for the same
  /// things one after the other: what others have asked for already, and this rank has not yet, is
  /// the same wish.
  wire::Schedule decide(const DriveLock& lock, int rank, wire::TimelineOrder order);
  /// As the job starts: a recording to `path` with it, or none if that is empty.
  std::optional<wire::Schedule> decide_first(const DriveLock& lock, const std::string& path,
                                             bool mark_cycles);
  /// A recording may have failed meanwhile.
  void look_for_failure(const DriveLock& lock) {
    if (!failed_.load(std::memory_order_relaxed)) return;
    failed_.store(false, std::memory_order_relaxed);
    watch_traffic(lock);
  }
  [[nodiscard]] bool marks_cycles(const DriveLock& /*held*/) const { return cycles_marked_; }
  /// Whether it records when other ranks announce tensors: they do not record. The caller holds the
  /// DriveLock, or is called by somebody who does.
  [[nodiscard]] bool records_arrivals() const { return records_arrivals_ && recorder_.active(); }

  // ---- every rank -------------------------------------------------------------------------------

  /// Before anything can be submitted: waits until rank 0 has decided whether a recording begins
  /// with the job, if the settings ask for one (`wanted`). Signals may end the wait: throws what
  /// MeetingOptions::on_wait does.
  void await_decision(bool wanted);
  /// An entry of the schedule: what rank 0 has decided.
  void apply(const DriveLock& lock, const wire::Schedule& schedule);

 private:
  using Action = wire::TimelineOrder::Action;
  static constexpr std::string_view kCompressed = ".gz";

  /// What the last order comes to that rank 0 has not read in the schedule itself.
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
  std::atomic<bool> failed_{false};  // a recording has; nobody has looked what follows from it
  Timeline timeline_;
  Recorder recorder_;

  // Progress.
  bool steps_watched_;
  bool watched_for_good_ = false;
  bool cycles_marked_ = false;
  bool records_arrivals_ = false;
  std::string recorded_path_;          // rank 0's file of the last capture
  std::vector<std::string> recorded_;  // all of them, as they are to be called when finished
  // Rank 0's.
  std::set<std::string> compressed_;         // files that finishing is to compress
  std::vector<wire::TimelineOrder> wishes_;  // of all ranks
  std::vector<std::size_t> heard_;           // how many of them each rank has had
  std::optional<Ordered> ordered_;
  FileClaim claim_;                               // until its recording has begun
  std::map<std::string, std::string> asked_for_;  // what another file was taken for
  std::uint64_t orders_made_ = 0;
  std::uint64_t orders_read_ = 0;
  std::vector<std::uint64_t> toggles_;  // by signal, of each rank
  Nanos toggled_ = 0;

  std::mutex mutex_;  // of wishes: a thread that holds it may take the one of Submissions, too
  std::uint64_t asked_ = 0;
  std::string problem_;
  std::string file_;  // rank 0: of the last recording
  std::atomic<std::uint64_t> answered_{0};
};

}  // namespace hvdtune
