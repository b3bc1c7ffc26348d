// When the job is recorded, and what is left of it: the half of Engine that deals with timelines.
// Any rank may ask for a recording to begin or to end; the coordinator decides, and all ranks do it
// at one place in the schedule.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/futex.h"
#include "base/log.h"
#include "base/time_space.h"
#include "engine/engine.h"

namespace hvdtune {
namespace {

using Action = wire::TimelineOrder::Action;

constexpr Nanos kClosingPoll = 2 * kMillisecond;
constexpr Nanos kClosingAfterAbort = 500 * kMillisecond;
constexpr Nanos kSameSignal = 10 * kSecond;
constexpr Nanos kLookForDeath = 50 * kMillisecond;
constexpr std::size_t kLongestStallText = 4000;
constexpr std::string_view kCompressed = ".gz";

/// A relative name is relative to this process's working directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal().string();
}

std::string random_name() {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

const char* json_flag(bool flag) { return flag ? "true" : "false"; }

std::string settings_text(const wire::RuntimeSettings& settings) {
  // to_chars knows no locale.
  std::array<char, 32> cycle{};
  const auto end =
      std::to_chars(cycle.data(), cycle.data() + cycle.size(),
                    static_cast<double>(settings.cycle_time) / static_cast<double>(kMillisecond))
          .ptr;
  return "{\"fusion_threshold\":" + std::to_string(settings.fusion_threshold) +
         ",\"cycle_time_ms\":" + std::string(cycle.data(), end) +
         ",\"chunk_size\":" + std::to_string(settings.chunk_size) +
         ",\"one_shot_limit\":" + std::to_string(settings.one_shot_limit) +
         ",\"nccl_bypass_limit\":" + std::to_string(settings.nccl_bypass_limit) +
         ",\"hierarchical_allreduce\":" + json_flag(settings.hierarchical_allreduce) +
         ",\"hierarchical_allgather\":" + json_flag(settings.hierarchical_allgather) +
         ",\"num_nccl_streams\":" + std::to_string(settings.nccl_streams) + "}";
}

bool same_request(const wire::TimelineOrder& a, const wire::TimelineOrder& b) {
  return a.action == b.action && a.path == b.path && a.first_step == b.first_step &&
         a.end_step == b.end_step;
}

}  // namespace

// ---- asking -------------------------------------------------------------------------------------

std::uint64_t Engine::ask_timeline(const wire::TimelineOrder& order) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(table_mutex_);
    number = ++timeline_asked_;
    push_announcement(wire::encode_announce_timeline(order));
  }
  coordinator_bell_.ring(Urgency::kUrgent);
  return number;
}

bool Engine::await_timeline(std::uint64_t number, Nanos deadline) {
  const auto answered = [this, number] { return over_ || timeline_answered_ >= number; };
  if (!answered()) drive_until(answered, deadline);
  if (!answered()) return false;
  if (!recorder_.capture().open()) recorder_.capture().join();
  if (!timeline_.active()) timeline_.join();
  return true;
}

std::string Engine::timeline_problem() {
  const std::lock_guard lock(table_mutex_);
  return timeline_problem_;
}

std::string Engine::recorded_file() {
  if (!is_recorded()) return {};
  const std::lock_guard lock(table_mutex_);
  return recorded_file_;
}

// ---- the coordinator's side ---------------------------------------------------------------------

/// Decides what comes of the wish of a rank (-1: of the settings), and tells all ranks. Either one
/// rank asks, or all ranks ask for the same things one after the other: what others have asked for
/// already, and this rank has not yet, is the same wish.
void Engine::order_timeline(int rank, wire::TimelineOrder order) {
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kTimeline;
  schedule.rank = rank;
  if (order.action == Action::kToggle) {
    order.action = !is_new_toggle(rank) ? Action::kNothing
                   : will_be_recorded() ? Action::kStop
                                        : Action::kStart;
    carry_out(order);
    schedule.timeline = std::move(order);
    return publish_order(schedule);
  }
  const std::size_t at = rank < 0 ? 0 : static_cast<std::size_t>(rank);
  timeline_heard_.resize(static_cast<std::size_t>(size_));
  const auto begin = timeline_wishes_.begin() + static_cast<std::ptrdiff_t>(timeline_heard_[at]);
  const auto known = std::find_if(begin, timeline_wishes_.end(),
                                  [&](const auto& wish) { return same_request(wish, order); });
  if (rank >= 0 && known != timeline_wishes_.end()) {
    timeline_heard_[at] = static_cast<std::size_t>(known - timeline_wishes_.begin()) + 1;
    schedule.timeline.problem = known->problem;
    return publish_order(schedule);
  }
  const wire::TimelineOrder wish = order;
  carry_out(order);
  if (rank >= 0) {
    timeline_wishes_.push_back(wish);
    timeline_wishes_.back().problem = order.problem;
    timeline_heard_[at] = timeline_wishes_.size();
  }
  schedule.timeline = std::move(order);
  publish_order(schedule);
}

void Engine::publish_order(const wire::Schedule& schedule) {
  ++orders_published_;
  publish({schedule});
}

/// Whether rank 0 records once it has read what it has ordered.
bool Engine::will_be_recorded() { return ordered_ ? ordered_->recorded : is_recorded(); }

/// Whether a signal is not one that another rank has got already: a launcher may pass it on to all
/// of them, and each notices it when it can.
bool Engine::is_new_toggle(int rank) {
  toggles_.resize(static_cast<std::size_t>(size_));
  const std::uint64_t most = *std::max_element(toggles_.begin(), toggles_.end());
  std::uint64_t& own = toggles_[static_cast<std::size_t>(rank)];
  const Nanos now = monotonic_now();
  if (++own <= most && now - toggled_ < kSameSignal) return false;
  own = most + 1;
  toggled_ = now;
  return true;
}

/// What rank 0 does before the others hear of it; an order that comes to nothing says why.
void Engine::carry_out(wire::TimelineOrder& order) {
  if (order.action == Action::kStart) return decide_start(order);
  if (order.action == Action::kNothing) return;
  // Always: who records still, or will begin to, is not known here.
  ordered_.emplace();
  timeline_.stop();
  watch_traffic();
}

bool Engine::is_recorded() { return timeline_.active() || recorder_.capture().open(); }

void Engine::decide_start(wire::TimelineOrder& order) {
  order.path = absolute(order.path);
  // What is being written cannot be compressed.
  if (!options_.recording.horovod_format && order.path.ends_with(kCompressed)) {
    order.path.resize(order.path.size() - kCompressed.size());
    compressed_.insert(order.path);
  }
  cycles_marked_ = order.mark_cycles;
  const RecordingOptions& options = options_.recording;
  const std::string current = ordered_ ? ordered_->path : recorded_path_;
  const auto asked = asked_for_.find(current);
  if (will_be_recorded() && order.path == (asked == asked_for_.end() ? current : asked->second)) {
    order.path = current;
    if (!options.horovod_format) order.action = Action::kNothing;
  } else {
    order.problem = claim_file(order);
  }
  if (options.horovod_format && order.problem.empty()) {
    // Horovod's layout begins with what is announced next, not with what is executed next.
    order.problem = timeline_.start(order.path, order.mark_cycles, claim_.hand_over());
    watch_traffic();
    recorded_path_ = order.path;
    const std::lock_guard lock(table_mutex_);
    recorded_file_ = order.path;
  } else if (order.action == Action::kStart && order.problem.empty()) {
    order.recording = options.job + "/" + random_name();
    order.all_ranks = options.all_ranks;
    order.time_space = time_space();
  }
  if (order.problem.empty()) {
    if (order.action == Action::kStart) ordered_ = Ordered{true, order.path};
    arena_.recording_failed() = 0;
    return;
  }
  HVD_LOG_RANK(kWarning, rank_) << order.problem << "; nothing is recorded, training goes on.";
  order.action = Action::kNothing;
}

/// Holds the file for this job, or another one if another job uses it; an error text if there is
/// none to be had.
std::string Engine::claim_file(wire::TimelineOrder& order) {
  const std::string asked = order.path;
  const int size = options_.recording.horovod_format ? 1 : size_;
  std::string problem = claim_.take(asked, size);
  if (!problem.empty() || claim_.path() == asked) return problem;
  order.path = claim_.path();
  asked_for_[order.path] = asked;
  if (compressed_.contains(asked)) compressed_.insert(order.path);
  HVD_LOG_RANK(kWarning, rank_) << asked << " is in use by " << claim_.user()
                                << ": this job records to " << order.path << " instead.";
  return {};
}

// ---- every rank's side --------------------------------------------------------------------------

void Engine::order_first_timeline() {
  watch_traffic();
  if (options_.timeline.empty()) return;
  const capture::Window& window = options_.recording.window;
  order_timeline(-1, {.action = Action::kStart,
                      .path = options_.timeline,
                      .mark_cycles = options_.timeline_mark_cycles,
                      .first_step = window.first,
                      .end_step = window.end});
}

/// Before rank 0's decision there is nothing to read. Signals may end the wait.
void Engine::await_recording_decision() {
  std::atomic<std::uint32_t>& decided = arena_.recording_decided();
  if (is_coordinator()) {
    decided.store(1, std::memory_order_release);
    futex_wake(&decided, kWakeAll);
    if (bridge_) bridge_->wake();
  } else if (options_.timeline.empty()) {
    return;
  } else {
    // It is on its way here, or dies: all have met.
    const Nanos deadline = monotonic_now() + options_.meeting.timeout;
    while (decided.load(std::memory_order_acquire) == 0 && !arena_.aborted()) {
      const Nanos now = monotonic_now();
      if (now >= deadline) {
        HVD_LOG_RANK(kWarning, rank_)
            << "rank 0 has not said within " << options_.meeting.timeout / kSecond
            << " s what is recorded: the recording may miss the beginning of this rank.";
        return;
      }
      futex_wait(&decided, 0, std::min(deadline, now + kLookForDeath));
      options_.meeting.on_wait();
    }
  }
}

/// Before anything can be submitted here, and before rank 0 reads announcements: a recording that
/// begins with the job misses nothing.
void Engine::begin_with_recording() {
  if (!is_coordinator() && options_.timeline.empty()) return;
  const std::lock_guard lock(drive_mutex_);
  read_schedule();
}

void Engine::apply_timeline(const wire::Schedule& schedule) {
  const wire::TimelineOrder& order = schedule.timeline;
  capture::Capture& capture = recorder_.capture();
  if (order.action == Action::kStart && !order.recording.empty()) {
    if (is_coordinator() || order.all_ranks) start_capture(order);
  } else if (order.action == Action::kStop) {
    capture.end("stop_timeline() was called");
  }
  if (is_coordinator()) {
    if (++orders_read_ == orders_published_) ordered_.reset();
    watch_traffic();
  }
  if (schedule.rank != rank_) return;
  const std::lock_guard lock(table_mutex_);
  timeline_problem_ = order.problem;
  ++timeline_answered_;
}

void Engine::start_capture(const wire::TimelineOrder& order) {
  capture::Options options;
  options.path = path_of_rank(order.path, rank_);
  options.rank = rank_;
  options.window = {order.first_step, order.end_step};
  options.file_limit = options_.recording.file_limit;
  options.identity = "\"job\":";
  capture::append_json_string(options.identity, order.recording);
  options.identity += "," + options_.recording.identity;
  options.identity += ",\"cpus\":" + std::to_string(host_cpus()) +
                      ",\"local_size\":" + std::to_string(arena_.local_ranks());
  arena_.recording().fetch_add(1);
  if (!is_coordinator()) {
    // Rank 0 has not seen the files of another host.
    FileClaim own;
    if (const std::string problem = own.take(options.path, 1); !problem.empty()) {
      return on_recording_ended(problem, true);
    }
    if (own.path() != options.path) {
      HVD_LOG_RANK(kWarning, rank_) << options.path << " is in use by " << own.user()
                                    << ": this rank records to " << own.path() << " instead.";
    }
    options.path = own.path();
    options.claimed = own.hand_over();
  } else {
    options.claimed = claim_.hand_over();
  }
  const std::string problem = recorder_.capture().start(options);
  if (!problem.empty()) return on_recording_ended(problem, true);
  recorded_path_ = order.path;
  records_arrivals_ = is_coordinator() && !order.all_ranks;
  if (is_coordinator()) {
    std::string name = order.path;
    if (compressed_.contains(order.path)) name += kCompressed;
    if (std::find(recorded_.begin(), recorded_.end(), name) == recorded_.end()) {
      recorded_.push_back(name);
    }
    const std::lock_guard lock(table_mutex_);
    recorded_file_ = std::move(name);
  }
  if (is_coordinator() || (session_.is_here(0) && order.time_space == time_space())) {
    recorder_.capture().clock(monotonic_now(), 0, 0);
  } else {
    start_clock();
  }
}

/// On the thread that writes. `recorded`: the problem ended the recording.
void Engine::on_recording_ended(const std::string& problem, bool recorded) {
  arena_.recording().fetch_sub(1);
  if (!problem.empty() && !recorded) {
    if (arena_.recording_failed().load() != 0) return;  // the same, most likely
    HVD_LOG_RANK(kWarning, rank_)
        << problem << "; the end of that recording, which had been stopped, is missing.";
    return;
  }
  if (!problem.empty()) recording_failed_.store(true, std::memory_order_relaxed);
  if (problem.empty()) return;
  // One warning is enough for many ranks; but rank 0's file is the one that is looked for.
  if (arena_.recording_failed().exchange(1) != 0 && !is_coordinator()) return;
  HVD_LOG_RANK(kWarning, rank_) << problem << "; recording has ended, training goes on.";
}

void Engine::end_recording() {
  capture::Capture& capture = recorder_.capture();
  if (!capture.end("the job ended") && is_coordinator()) {
    HVD_LOG_RANK(kWarning, rank_)
        << "the timeline holds nothing: its first step, " << options_.recording.window.first
        << ", was not reached. " << capture.steps()
        << " steps ended; DistributedOptimizer.step() and mark_step() count them.";
  }
  capture.join();
}

bool Engine::await_recordings(Nanos deadline) {
  // A rank that died closes nothing.
  if (arena_.aborted()) deadline = std::min(deadline, monotonic_now() + kClosingAfterAbort);
  while (arena_.recording().load() > 0) {
    if (monotonic_now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kClosingPoll));
  }
  return true;
}

// ---- what is recorded ---------------------------------------------------------------------------

void Engine::record_settings(const wire::RuntimeSettings& settings) {
  recorder_.capture().settings(settings.epoch, settings_text(settings));
}

void Engine::record_stall(const std::string& report) {
  recorder_.capture().mark(capture::MarkKind::kStall, 0,
                           std::string_view(report).substr(0, kLongestStallText));
}

void Engine::mark_step() {
  if (!recorder_.capture().step() || !is_coordinator()) return;
  const std::lock_guard lock(drive_mutex_);
  watch_traffic();
}

void Engine::watch_traffic() {
  const bool watched = options_.watch_steps || timeline_.active() || recorder_.active();
  arena_.watched().store(watched ? 1 : 0, std::memory_order_seq_cst);
  if (bridge_) bridge_->wake();
}

}  // namespace hvdtune
