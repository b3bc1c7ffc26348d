#include "observe/stragglers/blame.h"

#include <algorithm>

namespace hvdtune {
namespace {

template <class T>
T median(std::vector<T>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Blame::Blame(const StragglerOptions& options, std::size_t parties)
    : options_(options), spells_(parties) {}

std::optional<StragglerNotice> Blame::end_step(std::uint64_t step, Nanos now, Nanos duration,
                                               const std::vector<Nanos>& cost) {
  const auto most = std::max_element(cost.begin(), cost.end());
  if (most == cost.end() || duration <= 0) return std::nullopt;
  Step done{step, now, duration, static_cast<int>(most - cost.begin()), *most, false};
  if (done.cost == 0) done.who = -1;
  done.counts = done.cost >= options_.least && options_.share > 0 &&
                static_cast<double>(done.cost) >= options_.share * static_cast<double>(duration);
  one_time_.step(duration, durations());
  history_[next_] = done;
  next_ = (next_ + 1) % kHistory;
  steps_ = std::min(steps_ + 1, kHistory);
  return named_ < 0 ? begin(done) : go_on(done);
}

/// For the case that nobody is named yet.
std::optional<StragglerNotice> Blame::begin(const Step& done) {
  if (suspect_ >= 0 && held_up_by(suspect_) < kForgiven) suspect_ = -1;
  if (!done.counts || !stands_out(done.who)) return std::nullopt;
  if (done.number < excused_until_ || !is_lasting(done)) return std::nullopt;
  notice_ = described(done.who);
  if (suspected_.since_step < notice_.since_step) {  // earlier than the history
    notice_.since_step = suspected_.since_step;
    notice_.since = suspected_.since;
  }
  if (excuse_ && excuse_(done.who, notice_.late)) {
    excused_until_ = done.number + kWindow;
    return std::nullopt;
  }
  named_ = done.who;
  return notice_;
}

std::optional<StragglerNotice> Blame::go_on(const Step& done) {
  if (done.who == named_ && done.counts) {
    notice_.until_step = done.number;
    return std::nullopt;
  }
  if (held_up_by(named_) >= kForgiven) return std::nullopt;
  const bool was_short = notice_.until_step - notice_.since_step < kLasting;
  Spells& spells = spells_[static_cast<std::size_t>(named_)];
  spells.patience = was_short ? std::clamp(2 * spells.patience, kFirstPatience, kMostPatience) : 0;
  spells.ended = done.number;
  named_ = suspect_ = -1;
  notice_.begins = false;
  return notice_;
}

/// Whether a party that could be named has held up the others for long enough.
bool Blame::is_lasting(const Step& done) {
  if (suspect_ != done.who) suspected_ = described(done.who);
  suspect_ = done.who;
  Spells& spells = spells_[static_cast<std::size_t>(done.who)];
  if (done.number - spells.ended > kMostPatience) spells.patience = 0;
  return done.number - suspected_.until_step >= spells.patience &&
         done.end - suspected_.since >= kLeastSpell;
}

/// Number of the last kWindow steps that it held up.
std::size_t Blame::held_up_by(int who) const {
  std::size_t times = 0;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    times += ago(i).counts && ago(i).who == who ? 1 : 0;
  }
  return times;
}

/// Whether it has held up enough of the last kWindow steps, for long enough, to be named.
bool Blame::stands_out(int who) const {
  const std::size_t times = held_up_by(who);
  if (times >= kNamed) return true;
  if (times < kMost || steps_ < kNamed) return false;  // a job's first steps are not usual ones
  Nanos cost = 0;
  Nanos time = 0;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    cost += ago(i).who == who ? ago(i).cost : 0;
    time += ago(i).duration;
  }
  return static_cast<double>(cost) >= options_.share * static_cast<double>(time) &&
         caused_by_chance(charges(), who, spells_.size()) < kRare;
}

std::vector<Charge> Blame::charges() const {
  std::vector<Charge> found;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    found.push_back({ago(i).who, ago(i).cost});
  }
  return found;
}

/// Durations of the last kWindow steps.
std::vector<Nanos> Blame::durations() const {
  std::vector<Nanos> found;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) found.push_back(ago(i).duration);
  return found;
}

StragglerNotice Blame::described(int who) const {
  StragglerNotice notice;
  notice.who = who;
  notice.times = held_up_by(who);
  notice.looked_at = std::min(steps_, kWindow);
  notice.until_step = ago(0).number;
  // Find the step since which the number of held-up steps exceeds that of the others by most.
  std::ptrdiff_t score = 0;
  std::ptrdiff_t most = 0;
  std::size_t since = 0;
  for (std::size_t i = 0; i < steps_; ++i) {
    score += ago(i).counts && ago(i).who == who ? 1 : -1;
    if (score <= most) continue;
    most = score;
    since = i;
  }
  notice.since_step = ago(since).number;
  notice.since = ago(since).end;
  std::vector<Nanos> late;
  std::vector<double> share;
  for (std::size_t i = 0; i <= since; ++i) {
    const Step& step = ago(i);
    if (!step.counts || step.who != who) continue;
    late.push_back(step.cost);
    share.push_back(static_cast<double>(step.cost) / static_cast<double>(step.duration));
  }
  if (late.empty()) return notice;
  notice.late = median(late);
  notice.share = median(share);
  return notice;
}

std::optional<Blame::Suspect> Blame::suspect() const {
  int who = named_;
  for (std::size_t i = 0; who < 0 && i < std::min(steps_, kWindow); ++i) {
    if (ago(i).counts && stands_out(ago(i).who)) who = ago(i).who;
  }
  std::vector<Nanos> late;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    if (ago(i).counts && ago(i).who == who) late.push_back(ago(i).cost);
  }
  if (late.empty()) return std::nullopt;
  return Suspect{who, median(late)};
}

std::vector<Lateness> Blame::lately() const {
  std::vector<Lateness> parties(spells_.size());
  const Nanos limit = one_time_.limit(durations());
  Nanos steps = 0;
  Nanos total = 0;
  for (std::size_t i = 0; i < std::min(steps_, kWindow); ++i) {
    const Step& step = ago(i);
    if (step.duration > limit) continue;
    ++steps;
    total += step.duration;
    if (step.who < 0) continue;
    Lateness& party = parties[static_cast<std::size_t>(step.who)];
    party.late += step.cost;
    party.last_share += 1.0;
  }
  for (Lateness& party : parties) {
    if (total > 0) party.share = static_cast<double>(party.late) / static_cast<double>(total);
    if (steps > 0) party.late /= steps;
    if (steps > 0) party.last_share /= static_cast<double>(steps);
  }
  return parties;
}

}  // namespace hvdtune
