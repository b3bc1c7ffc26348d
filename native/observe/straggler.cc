#include "observe/straggler.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace hvdtune {
namespace {

template <class T>
T median(std::vector<T>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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

/// The last of the ascending `times` until `end`, or 0; `at` goes on to the first that is later.
Nanos latest_until(Nanos end, const std::vector<Nanos>& times, std::size_t& at) {
  while (at < times.size() && times[at] <= end) ++at;
  return at > 0 ? times[at - 1] : 0;
}

/// Keeps what is later, and one before.
void forget_before(std::vector<Nanos>& times, std::size_t later) {
  if (later > 1) times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(later - 1));
}

}  // namespace

StragglerWatch::StragglerWatch(const StragglerOptions& options, int ranks)
    : options_(options),
      times_(static_cast<std::size_t>(ranks)),
      apart_(static_cast<std::size_t>(ranks)),
      cost_(static_cast<std::size_t>(ranks), 0),
      spells_(static_cast<std::size_t>(ranks)) {}

/// A step that does not end, or tensors of some ranks only: then the newest is all that matters.
void StragglerWatch::make_room(std::vector<Nanos>& times) {
  settle();
  if (times.size() < kMostTimes) return;
  const Nanos newest = times.back();
  times.assign(1, newest);
}

/// Charges what is complete to the ranks that completed it.
void StragglerWatch::settle() {
  const auto earlier = [](const Complete& a, const Complete& b) { return a.time < b.time; };
  // The coordinator reads one rank's announcements after the other's.
  if (!std::is_sorted(complete_.begin(), complete_.end(), earlier)) {
    std::sort(complete_.begin(), complete_.end(), earlier);
  }
  // By rank, the first time that is later.
  std::vector<std::size_t> at(times_.size(), 0);
  std::vector<std::size_t> apart_at(apart_.size(), 0);
  for (const Complete& one : complete_) {
    Nanos busy = counted_until_;
    for (std::size_t rank = 0; rank < times_.size(); ++rank) {
      const bool own = static_cast<int>(rank) == one.rank;
      const Nanos before = latest_until(one.time, times_[rank], at[rank]);
      const Nanos apart = latest_until(one.time, apart_[rank], apart_at[rank]);
      busy = std::max(busy, own ? apart : before);
    }
    if (one.time > busy) cost_[static_cast<std::size_t>(one.rank)] += one.time - busy;
    counted_until_ = std::max(counted_until_, one.time);
  }
  complete_.clear();
  for (std::size_t rank = 0; rank < times_.size(); ++rank) {
    forget_before(times_[rank], at[rank]);
    forget_before(apart_[rank], apart_at[rank]);
  }
}

std::optional<StragglerNotice> StragglerWatch::end_step(std::uint64_t step, Nanos now) {
  settle();
  const Nanos duration = now - last_end_;
  const bool first = std::exchange(last_end_, now) == 0;  // when it began is not known
  const auto most = std::max_element(cost_.begin(), cost_.end());
  Step done{step, now, duration, static_cast<int>(most - cost_.begin()), *most, false};
  std::fill(cost_.begin(), cost_.end(), 0);
  if (first || duration <= 0) return std::nullopt;
  if (done.cost == 0) done.rank = -1;
  done.counts = done.cost >= options_.least && options_.share > 0 &&
                static_cast<double>(done.cost) >= options_.share * static_cast<double>(duration);
  history_[next_] = done;
  next_ = (next_ + 1) % kHistory;
  steps_ = std::min(steps_ + 1, kHistory);

  if (named_ < 0) {
    if (suspect_ >= 0 && held_up_by(suspect_) < kForgiven) suspect_ = -1;
    if (!done.counts || held_up_by(done.rank) < kNamed) return std::nullopt;
    if (step < excused_until_ || !is_lasting(done.rank, step)) return std::nullopt;
    notice_ = described(done.rank);
    if (suspected_.since_step < notice_.since_step) {  // further back than the history goes
      notice_.since_step = suspected_.since_step;
      notice_.since = suspected_.since;
    }
    if (excuse_ && excuse_(done.rank, notice_.late)) {
      excused_until_ = step + kWindow;
      return std::nullopt;
    }
    named_ = done.rank;
    return notice_;
  }
  if (done.rank == named_ && done.counts) {
    notice_.until_step = step;
    return std::nullopt;
  }
  if (held_up_by(named_) >= kForgiven) return std::nullopt;
  const bool was_short = notice_.until_step - notice_.since_step < kLasting;
  Spells& spells = spells_[static_cast<std::size_t>(named_)];
  spells.patience = was_short ? std::clamp(2 * spells.patience, kFirstPatience, kMostPatience) : 0;
  spells.ended = step;
  named_ = suspect_ = -1;
  notice_.begins = false;
  return notice_;
}

/// Whether a rank that could be named has been one for long enough.
bool StragglerWatch::is_lasting(int rank, std::uint64_t step) {
  if (suspect_ != rank) suspected_ = described(rank);
  suspect_ = rank;
  Spells& spells = spells_[static_cast<std::size_t>(rank)];
  if (step - spells.ended > kMostPatience) spells.patience = 0;
  return step - suspected_.until_step >= spells.patience;
}

/// Of the last kWindow steps.
std::size_t StragglerWatch::held_up_by(int rank) const {
  std::size_t times = 0;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    times += ago(i).counts && ago(i).rank == rank ? 1 : 0;
  }
  return times;
}

StragglerNotice StragglerWatch::described(int rank) const {
  StragglerNotice notice;
  notice.rank = rank;
  notice.times = held_up_by(rank);
  notice.looked_at = std::min(steps_, kWindow);
  notice.until_step = ago(0).number;
  std::vector<Nanos> late;
  std::vector<double> share;
  for (std::size_t i = 0; i < steps_; ++i) {
    const Step& step = ago(i);
    if (!step.counts || step.rank != rank) continue;
    late.push_back(step.cost);
    share.push_back(static_cast<double>(step.cost) / static_cast<double>(step.duration));
    // As far back as it held up four steps of five, from there to now.
    if (late.size() * 5 < (i + 1) * 4) break;
    notice.since_step = step.number;
    notice.since = step.end;
  }
  notice.late = median(late);
  notice.share = median(share);
  return notice;
}

std::vector<RankLateness> StragglerWatch::lately() const {
  std::vector<RankLateness> ranks(times_.size());
  const std::size_t steps = std::min(steps_, kWindow);
  Nanos total = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const Step& step = ago(i);
    total += step.duration;
    if (step.rank < 0) continue;
    RankLateness& rank = ranks[static_cast<std::size_t>(step.rank)];
    rank.late += step.cost;
    rank.last_share += 1.0 / static_cast<double>(steps);
  }
  for (RankLateness& rank : ranks) {
    if (total > 0) rank.share = static_cast<double>(rank.late) / static_cast<double>(total);
    if (steps > 0) rank.late /= static_cast<Nanos>(steps);
  }
  return ranks;
}

std::string straggler_text(const StragglerNotice& notice, const std::string& where) {
  const std::string rank = "rank " + std::to_string(notice.rank) + " (" + where + ")";
  const std::string cost =
      milliseconds(notice.late) + " a step, " + percent(notice.share) + " of the step";
  if (!notice.begins) {
    return rank + " is no longer late. It held up the others from step " +
           std::to_string(notice.since_step) + " to step " + std::to_string(notice.until_step) +
           ", by " + cost + ".";
  }
  return rank + " is late, step after step: the other ranks wait for it " + cost + " (median; " +
         std::to_string(notice.times) + " of the last " + std::to_string(notice.looked_at) +
         " steps), since step " + std::to_string(notice.since_step) + " at " +
         time_of_day(notice.since) + ".";
}

}  // namespace hvdtune
