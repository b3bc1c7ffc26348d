#include "observe/stragglers/straggler.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace hvdtune {
namespace {

std::string milliseconds(Nanos time) {
  std::array<char, 32> text{};
  const double ms = static_cast<double>(time) / kMillisecond;
  std::snprintf(text.data(), text.size(), ms < 10 ? "%.1f ms" : "%.0f ms", ms);
  return text.data();
}

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f %%", share * 100);
  return text.data();
}

/// Wall-clock time of day of a moment of the monotonic clock.
std::string time_of_day(Nanos moment) {
  const auto then = static_cast<time_t>((wall_clock_now() - (monotonic_now() - moment)) / kSecond);
  tm parts{};
  localtime_r(&then, &parts);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%H:%M:%S", &parts);
  return text.data();
}

/// The last of the ascending `times` up to `end`, or 0; moves `at` to the first later one.
Nanos latest_until(Nanos end, const std::vector<Nanos>& times, std::size_t& at) {
  while (at < times.size() && times[at] <= end) ++at;
  return at > 0 ? times[at - 1] : 0;
}

/// The same for an earlier end.
Nanos latest_before(Nanos end, const std::vector<Nanos>& times, std::size_t at) {
  while (at > 0 && times[at - 1] > end) --at;
  return at > 0 ? times[at - 1] : 0;
}

/// Keeps the times from index `later` on, and one before.
void forget_before(std::vector<Nanos>& times, std::size_t later) {
  if (later > 1) times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(later - 1));
}

}  // namespace

std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of[rank]);
    if (host >= ranks.size()) ranks.resize(host + 1);
    ranks[host].push_back(static_cast<int>(rank));
  }
  return ranks;
}

StragglerWatch::StragglerWatch(const StragglerOptions& options, std::vector<int> host_of)
    : host_of_(std::move(host_of)),
      ranks_of_(ranks_by_host(host_of_)),
      times_(host_of_.size()),
      apart_(host_of_.size()),
      rank_cost_(host_of_.size(), 0),
      host_cost_(ranks_of_.size(), 0),
      rank_blame_(options, host_of_.size()),
      host_blame_(options, ranks_of_.size()) {
  host_blame_.set_excuse([this](int host, Nanos late) {
    const std::optional<Blame::Suspect> rank = rank_blame_.suspect();
    return rank && host_of_[static_cast<std::size_t>(rank->who)] == host && rank->late >= late;
  });
}

/// For a step that does not end, or tensors of only some ranks: then only the newest times matter.
void StragglerWatch::make_room(std::vector<Nanos>& times) {
  settle();
  if (times.size() < kMostTimes) return;
  const Nanos newest = times.back();
  times.assign(1, newest);
}

/// The typical time of `rank`'s host; 0 if that has only one rank.
Nanos StragglerWatch::typical_time(int rank, const std::vector<Nanos>& times) {
  const std::vector<int>& ranks = ranks_of(host_of_[static_cast<std::size_t>(rank)]);
  if (ranks.size() < 2) return 0;
  sorted_.clear();
  for (const int one : ranks) sorted_.push_back(times[static_cast<std::size_t>(one)]);
  const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>((ranks.size() - 1) / 2);
  std::nth_element(sorted_.begin(), middle, sorted_.end());
  return *middle;
}

/// Charges completed tensors to the ranks that completed them, and to their hosts.
void StragglerWatch::settle() {
  const auto earlier = [](const Complete& a, const Complete& b) { return a.time < b.time; };
  // The coordinator reads announcements rank by rank.
  if (!std::is_sorted(complete_.begin(), complete_.end(), earlier)) {
    std::sort(complete_.begin(), complete_.end(), earlier);
  }
  // By rank, index of the first later time.
  std::vector<std::size_t> at(times_.size(), 0);
  std::vector<std::size_t> apart_at(apart_.size(), 0);
  for (const Complete& one : complete_) {
    const int host = host_of_[static_cast<std::size_t>(one.rank)];
    Nanos busy = counted_until_;
    Nanos host_busy = counted_until_;
    for (std::size_t rank = 0; rank < times_.size(); ++rank) {
      const bool own = static_cast<int>(rank) == one.rank;
      const Nanos before = latest_until(one.time, times_[rank], at[rank]);
      const Nanos apart = latest_until(one.time, apart_[rank], apart_at[rank]);
      busy = std::max(busy, own ? apart : before);
      if (one.typical == 0) continue;
      const bool on_host = host_of_[rank] == host;
      host_busy = std::max(
          host_busy, on_host ? latest_before(one.typical, apart_[rank], apart_at[rank]) : before);
    }
    if (one.time > busy) rank_cost_[static_cast<std::size_t>(one.rank)] += one.time - busy;
    if (one.typical > host_busy) {
      host_cost_[static_cast<std::size_t>(host)] += one.typical - host_busy;
    }
    counted_until_ = std::max(counted_until_, one.time);
  }
  complete_.clear();
  for (std::size_t rank = 0; rank < times_.size(); ++rank) {
    forget_before(times_[rank], at[rank]);
    forget_before(apart_[rank], apart_at[rank]);
  }
}

StragglerWatch::Notices StragglerWatch::end_step(std::uint64_t step, Nanos now) {
  settle();
  const Nanos duration = now - last_end_;
  const bool first = std::exchange(last_end_, now) == 0;  // its start is not known
  Notices notices;
  if (!first) {
    // Ranks first: the host's excuse checks which rank is named.
    notices.rank = rank_blame_.end_step(step, now, duration, rank_cost_);
    if (across_hosts()) notices.host = host_blame_.end_step(step, now, duration, host_cost_);
  }
  std::fill(rank_cost_.begin(), rank_cost_.end(), 0);
  std::fill(host_cost_.begin(), host_cost_.end(), 0);
  return notices;
}

std::string straggler_text(const StragglerNotice& notice, const std::string& who,
                           const std::string& others) {
  const std::string cost =
      milliseconds(notice.late) + " a step, " + percent(notice.share) + " of the step";
  if (!notice.begins) {
    return who + " no longer holds the others up. It did from step " +
           std::to_string(notice.since_step) + " to step " + std::to_string(notice.until_step) +
           ", by " + cost + ".";
  }
  const double held = static_cast<double>(notice.times) /
                      static_cast<double>(std::max<std::size_t>(notice.looked_at, 1));
  return who + " holds the others up in " + percent(held) + " of the steps: " + others +
         " wait for it " + cost + " (median; " + std::to_string(notice.times) + " of the last " +
         std::to_string(notice.looked_at) + " steps), since step " +
         std::to_string(notice.since_step) + " at " + time_of_day(notice.since) + ".";
}

}  // namespace hvdtune
