#include "engine/recording/recording_control.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/threads/futex.h"
#include "base/time_space.h"

namespace hvdtune {
namespace {

constexpr Nanos kClosingPoll = 2 * kMillisecond;
constexpr Nanos kClosingAfterAbort = 500 * kMillisecond;
constexpr Nanos kLookForDeath = 50 * kMillisecond;

}  // namespace

RecordingControl::RecordingControl(const Job& job, DriveMutex& drive_mutex,
                                   Submissions& submissions, RecordingOptions options,
                                   bool steps_watched, std::function<void()> compare_clocks)
    : job_(job),
      drive_mutex_(drive_mutex),
      submissions_(submissions),
      options_(std::move(options)),
      compare_clocks_(std::move(compare_clocks)),
      recorder_(options_.buffer_bytes,
                [this](const std::string& problem, bool recorded) { on_ended(problem, recorded); }),
      steps_watched_(steps_watched) {}

// ---- callers ------------------------------------------------------------------------------------

std::uint64_t RecordingControl::ask(const wire::TimelineOrder& order) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++asked_;
    submissions_.announce(wire::encode_announce_timeline(order));
  }
  job_.coordinator_bell.ring(Urgency::kUrgent);
  return number;
}

void RecordingControl::join_ended() {
  if (!recorder_.capture().open()) recorder_.capture().join();
  if (!timeline_.active()) timeline_.join();
}

std::string RecordingControl::problem() {
  const std::lock_guard lock(mutex_);
  return problem_;
}

bool RecordingControl::is_recorded() { return timeline_.active() || recorder_.capture().open(); }

std::string RecordingControl::file() {
  if (!is_recorded()) return {};
  const std::lock_guard lock(mutex_);
  return file_;
}

void RecordingControl::set_file(std::string file) {
  const std::lock_guard lock(mutex_);
  file_ = std::move(file);
}

void RecordingControl::mark_step() {
  if (!recorder_.capture().step() || !job_.is_coordinator()) return;
  watch_traffic(DriveLock(drive_mutex_));
}

void RecordingControl::stop_watching_steps() {
  if (!job_.is_coordinator()) return;
  const DriveLock lock(drive_mutex_);
  steps_watched_ = false;
  watch_traffic(lock);
}

bool RecordingControl::await_recordings(Nanos deadline) {
  // A dead rank closes no file.
  if (job_.arena.aborted()) deadline = std::min(deadline, monotonic_now() + kClosingAfterAbort);
  while (job_.arena.recording().load() > 0) {
    if (monotonic_now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kClosingPoll));
  }
  return true;
}

void RecordingControl::stop() {
  timeline_.stop();
  timeline_.join();
  capture::Capture& capture = recorder_.capture();
  if (!capture.end("the job ended") && job_.is_coordinator()) {
    HVD_LOG_RANK(kWarning, job_.rank)
        << "the timeline holds nothing: its first step, " << capture.first_step()
        << ", was not reached. " << capture.steps()
        << " steps ended; DistributedOptimizer.step() and mark_step() count them.";
  }
  capture.join();
}

// ---- every rank ---------------------------------------------------------------------------------

void RecordingControl::await_decision(bool wanted) {
  std::atomic<std::uint32_t>& decided = job_.arena.recording_decided();
  if (job_.is_coordinator()) {
    decided.store(1, std::memory_order_release);
    futex_wake(&decided, kWakeAll);
    job_.wake_bridge();
  } else if (!wanted) {
    return;
  } else {
    // The decision will arrive, unless rank 0 dies, since all ranks have met.
    const Nanos deadline = monotonic_now() + job_.meeting.timeout;
    while (decided.load(std::memory_order_acquire) == 0 && !job_.arena.aborted()) {
      const Nanos now = monotonic_now();
      if (now >= deadline) {
        HVD_LOG_RANK(kWarning, job_.rank)
            << "rank 0 has not said within " << job_.meeting.timeout / kSecond
            << " s what is recorded: the recording may miss the beginning of this rank.";
        return;
      }
      futex_wait(&decided, 0, std::min(deadline, now + kLookForDeath));
      job_.meeting.on_wait();
    }
  }
}

void RecordingControl::apply(const DriveLock& lock, const wire::Schedule& schedule) {
  const wire::TimelineOrder& order = schedule.timeline;
  capture::Capture& capture = recorder_.capture();
  if (order.action == Action::kStart && !order.recording.empty()) {
    if (job_.is_coordinator() || order.all_ranks) start_capture(lock, order);
  } else if (order.action == Action::kStop) {
    capture.end("stop_timeline() was called");
  }
  if (job_.is_coordinator()) {
    if (++orders_read_ == orders_made_) ordered_.reset();
    watch_traffic(lock);
  }
  if (schedule.rank != job_.rank) return;
  const std::lock_guard answer(mutex_);
  problem_ = order.problem;
  ++answered_;
}

void RecordingControl::start_capture(const DriveLock& /*held*/, const wire::TimelineOrder& order) {
  capture::Options options;
  options.path = path_of_rank(order.path, job_.rank);
  options.rank = job_.rank;
  options.window = {order.first_step, order.end_step};
  options.file_limit = options_.file_limit;
  options.identity = "\"job\":";
  capture::append_json_string(options.identity, order.recording);
  options.identity += "," + options_.identity;
  options.identity += ",\"cpus\":" + std::to_string(job_.arena.cpus()) +
                      ",\"local_size\":" + std::to_string(job_.arena.local_ranks());
  job_.arena.recording().fetch_add(1);
  if (!job_.is_coordinator()) {
    // Rank 0 cannot see the files of another host.
    FileClaim own;
    if (const std::string problem = own.take(options.path, 1); !problem.empty()) {
      return on_ended(problem, true);
    }
    if (own.path() != options.path) {
      HVD_LOG_RANK(kWarning, job_.rank) << options.path << " is in use by " << own.user()
                                        << ": this rank records to " << own.path() << " instead.";
    }
    options.path = own.path();
    options.claimed = own.hand_over();
  } else {
    options.claimed = claim_.hand_over();
  }
  const std::string problem = recorder_.capture().start(options);
  if (!problem.empty()) return on_ended(problem, true);
  recorded_path_ = order.path;
  records_arrivals_ = job_.is_coordinator() && !order.all_ranks;
  if (job_.is_coordinator()) {
    std::string name = order.path;
    if (compressed_.contains(order.path)) name += kCompressed;
    if (std::find(recorded_.begin(), recorded_.end(), name) == recorded_.end()) {
      recorded_.push_back(name);
    }
    set_file(std::move(name));
  }
  if (job_.is_coordinator() || (job_.session.is_here(0) && order.time_space == time_space())) {
    recorder_.capture().clock(monotonic_now(), 0, 0);
  } else {
    compare_clocks_();
  }
}

/// The writing thread calls it. `recorded`: the problem ended the recording.
void RecordingControl::on_ended(const std::string& problem, bool recorded) {
  job_.arena.recording().fetch_sub(1);
  if (!problem.empty() && !recorded) {
    if (job_.arena.recording_failed().load() != 0) return;  // most likely the same problem
    HVD_LOG_RANK(kWarning, job_.rank)
        << problem << "; the end of that recording, which had been stopped, is missing.";
    return;
  }
  if (!problem.empty()) failed_.store(true, std::memory_order_relaxed);
  if (problem.empty()) return;
  // One warning is enough for many ranks; but rank 0 always warns, since users look for its file.
  if (job_.arena.recording_failed().exchange(1) != 0 && !job_.is_coordinator()) return;
  HVD_LOG_RANK(kWarning, job_.rank) << problem << "; recording has ended, training goes on.";
}

void RecordingControl::watch_traffic(const DriveLock& /*held*/) {
  const bool watched =
      steps_watched_ || watched_for_good_ || timeline_.active() || recorder_.active();
  job_.arena.watched().store(watched ? 1 : 0, std::memory_order_seq_cst);
  job_.wake_bridge();
}

}  // namespace hvdtune
