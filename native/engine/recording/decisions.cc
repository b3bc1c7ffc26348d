// Rank 0's decisions about recordings.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/log.h"
#include "base/time_space.h"
#include "engine/recording/recording_control.h"

namespace hvdtune {
namespace {

constexpr Nanos kSameSignal = 10 * kSecond;

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

bool same_request(const wire::TimelineOrder& a, const wire::TimelineOrder& b) {
  return a.action == b.action && a.path == b.path && a.first_step == b.first_step &&
         a.end_step == b.end_step;
}

}  // namespace

wire::Schedule RecordingControl::decide(const DriveLock& lock, int rank,
                                        wire::TimelineOrder order) {
  ++orders_made_;
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kTimeline;
  schedule.rank = rank;
  if (order.action == Action::kToggle) {
    order.action = !is_new_toggle(lock, rank) ? Action::kNothing
                   : will_be_recorded(lock)   ? Action::kStop
                                              : Action::kStart;
    carry_out(lock, order);
    schedule.timeline = std::move(order);
    return schedule;
  }
  const std::size_t at = rank < 0 ? 0 : static_cast<std::size_t>(rank);
  heard_.resize(static_cast<std::size_t>(job_.size));
  const auto begin = wishes_.begin() + static_cast<std::ptrdiff_t>(heard_[at]);
  const auto known = std::find_if(begin, wishes_.end(),
                                  [&](const auto& wish) { return same_request(wish, order); });
  if (rank >= 0 && known != wishes_.end()) {
    heard_[at] = static_cast<std::size_t>(known - wishes_.begin()) + 1;
    schedule.timeline.problem = known->problem;
    return schedule;
  }
  const wire::TimelineOrder wish = order;
  carry_out(lock, order);
  if (rank >= 0) {
    wishes_.push_back(wish);
    wishes_.back().problem = order.problem;
    heard_[at] = wishes_.size();
  }
  schedule.timeline = std::move(order);
  return schedule;
}

std::optional<wire::Schedule> RecordingControl::decide_first(const DriveLock& lock,
                                                             const std::string& path,
                                                             bool mark_cycles) {
  watch_traffic(lock);
  if (path.empty()) return std::nullopt;
  const capture::Window& window = options_.window;
  return decide(lock, -1,
                {.action = Action::kStart,
                 .path = path,
                 .mark_cycles = mark_cycles,
                 .first_step = window.first,
                 .end_step = window.end});
}

/// Whether rank 0 will record once it has read its own orders.
bool RecordingControl::will_be_recorded(const DriveLock& /*held*/) {
  return ordered_ ? ordered_->recorded : is_recorded();
}

/// Whether a signal is a new one. A launcher may send the same signal to all ranks, and each
/// notices it at a different time.
bool RecordingControl::is_new_toggle(const DriveLock& /*held*/, int rank) {
  toggles_.resize(static_cast<std::size_t>(job_.size));
  const std::uint64_t most = *std::max_element(toggles_.begin(), toggles_.end());
  std::uint64_t& own = toggles_[static_cast<std::size_t>(rank)];
  const Nanos now = monotonic_now();
  if (++own <= most && now - toggled_ < kSameSignal) return false;
  own = most + 1;
  toggled_ = now;
  return true;
}

/// Does rank 0's part before the others learn of the order; if the order is refused, it contains
/// the reason.
void RecordingControl::carry_out(const DriveLock& lock, wire::TimelineOrder& order) {
  if (order.action == Action::kStart) return decide_start(lock, order);
  if (order.action == Action::kNothing) return;
  // Always stop: it is not known here which ranks still record, or will begin to.
  ordered_.emplace();
  timeline_.stop();
  watch_traffic(lock);
}

void RecordingControl::decide_start(const DriveLock& lock, wire::TimelineOrder& order) {
  order.path = absolute(order.path);
  // A file cannot be compressed while it is written.
  if (!options_.horovod_format && order.path.ends_with(kCompressed)) {
    order.path.resize(order.path.size() - kCompressed.size());
    compressed_.insert(order.path);
  }
  cycles_marked_ = order.mark_cycles;
  const std::string current = ordered_ ? ordered_->path : recorded_path_;
  const auto asked = asked_for_.find(current);
  if (will_be_recorded(lock) &&
      order.path == (asked == asked_for_.end() ? current : asked->second)) {
    order.path = current;
    if (!options_.horovod_format) order.action = Action::kNothing;
  } else {
    order.problem = claim_file(lock, order);
  }
  if (options_.horovod_format && order.problem.empty()) {
    // Horovod's layout begins with the next announcement, not with the next execution.
    order.problem = timeline_.start(order.path, order.mark_cycles, claim_.hand_over());
    watch_traffic(lock);
    recorded_path_ = order.path;
    set_file(order.path);
  } else if (order.action == Action::kStart && order.problem.empty()) {
    order.recording = options_.job + "/" + random_name();
    order.all_ranks = options_.all_ranks;
    order.time_space = time_space();
  }
  if (order.problem.empty()) {
    if (order.action == Action::kStart) ordered_ = Ordered{true, order.path};
    job_.arena.recording_failed() = 0;
    return;
  }
  HVD_LOG_RANK(kWarning, job_.rank) << order.problem << "; nothing is recorded, training goes on.";
  order.action = Action::kNothing;
}

/// Claims the file for this job, or another name if another job uses it; returns an error text if
/// no name is free.
std::string RecordingControl::claim_file(const DriveLock& /*held*/, wire::TimelineOrder& order) {
  const std::string asked = order.path;
  // The other ranks' files of an earlier recording of this job are still locked, but not in use.
  const bool again = std::any_of(recorded_.begin(), recorded_.end(), [&](const std::string& name) {
    return name == asked || name == asked + std::string(kCompressed);
  });
  const int size = options_.horovod_format ? 1 : job_.size;
  std::string problem = claim_.take(asked, size, again);
  if (!problem.empty() || claim_.path() == asked) return problem;
  order.path = claim_.path();
  asked_for_[order.path] = asked;
  if (compressed_.contains(asked)) compressed_.insert(order.path);
  HVD_LOG_RANK(kWarning, job_.rank) << asked << " is in use by " << claim_.user()
                                    << ": this job records to " << order.path << " instead.";
  return {};
}

}  // namespace hvdtune
