#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

struct StragglerOptions {
  /// The least that a rank must cost, as a share of the step; 0 = nobody is ever named.
  double share = 0.05;
  /// And in time: below it, waking up and scheduling are all there is to see.
  Nanos least = 500 * kMicrosecond;
};

/// A rank that holds the others up step after step, or does so no longer.
struct StragglerNotice {
  bool begins = true;
  int rank = 0;
  Nanos late = 0;                ///< what it costs a step, median
  double share = 0;              ///< the same as a share of the step's duration, median
  std::uint64_t since_step = 0;  ///< the first of the steps it held up
  Nanos since = 0;               ///< when that step ended
  std::uint64_t until_step = 0;  ///< the last one seen
  std::size_t times = 0;         ///< of the last `looked_at` steps, how many it held up
  std::size_t looked_at = 0;
};

/// What one rank has cost lately.
struct RankLateness {
  Nanos late = 0;         ///< mean of the steps looked at
  double share = 0;       ///< of these steps' time
  double last_share = 0;  ///< of these steps, how many it was the last in
};

/// Finds the rank that everybody waits for, from the times at which ranks announce tensors; costs
/// two stores an announcement. One thread at a time; times are of one clock.
///
/// What a rank *costs*: when a tensor gets complete by its announcement while another rank is
/// blocked, the time since any other rank has announced anything, since before that another was
/// busy as well; and since it has done anything itself in which not all ranks have a part: until
/// then it had work that they do not have. Nothing is counted twice, so a rank that is late for all
/// tensors of a step by 30 ms costs 30 ms, and one that is late by 3 ms at each of ten points where
/// all wait costs 30 ms, too. It is what the step would gain if this rank were as fast as the
/// second slowest.
///
/// The test: a step counts against the rank that costs most in it if that is at least
/// `options.share` of the step and `options.least`. Named is a rank against which 36 of the last 40
/// steps count; it is late no longer when fewer than 16 do. Ranks that take turns in being the last
/// (noise; more ranks than CPUs) do not come near 36: of two equal ranks, one of which costs that
/// much in every step by mere chance, one is named in any 40 steps with probability 2e-7 (binomial
/// tail), and that falls steeply with their number.
///
/// A rank that is late now and then, for a while each time, would fill the log. Where a spell
/// lasted less than `kLasting` steps, a rank has to hold the others up for `kFirstPatience` steps
/// longer before it is named again, and for twice as long after each such spell; until it has not
/// been named for `kMostPatience` steps.
class StragglerWatch {
 public:
  static constexpr std::size_t kWindow = 40;
  static constexpr std::size_t kNamed = 36;
  static constexpr std::size_t kForgiven = 16;
  static constexpr std::uint64_t kLasting = 1000;
  static constexpr std::uint64_t kFirstPatience = 200;
  static constexpr std::uint64_t kMostPatience = 12'800;

  StragglerWatch(const StragglerOptions& options, int ranks);

  /// `rank` has announced a tensor. A rank's times never go backwards.
  void announced(int rank, Nanos time) {
    std::vector<Nanos>& times = times_[static_cast<std::size_t>(rank)];
    if (times.size() >= kMostTimes) make_room(times);
    times.push_back(time);
  }
  /// `rank` has taken part, at `time`, in what not all ranks take part in. A time before the last
  /// one says nothing new.
  void apart(int rank, Nanos time) {
    std::vector<Nanos>& times = apart_[static_cast<std::size_t>(rank)];
    if (times.size() >= kMostTimes) make_room(times);
    if (times.empty() || time > times.back()) times.push_back(time);
  }
  /// A tensor of all ranks is complete; `rank` was the last to announce it, at `time`.
  /// \param awaited another rank was blocked then
  void complete(int rank, Nanos time, bool awaited) {
    if (!awaited) return;
    if (complete_.size() == kMostTimes) settle();
    complete_.push_back({time, rank});
  }
  /// A step ends. The notice that is due now, if any: at most one.
  std::optional<StragglerNotice> end_step(std::uint64_t step, Nanos now);

  /// Asked before a rank is named, with what it costs a step: true if there is a reason that is not
  /// its own. It is asked again after kWindow steps.
  void set_excuse(std::function<bool(int rank, Nanos late)> excuse) { excuse_ = std::move(excuse); }

  /// By rank, over the last kWindow steps or as many as there were.
  [[nodiscard]] std::vector<RankLateness> lately() const;
  /// The rank that is named now, or -1.
  [[nodiscard]] int named() const { return named_; }

 private:
  static constexpr std::size_t kMostTimes = 8192;
  static constexpr std::size_t kHistory = 128;
  struct Complete {
    Nanos time;
    int rank;
  };
  struct Step {
    std::uint64_t number = 0;
    Nanos end = 0;
    Nanos duration = 0;
    int rank = -1;  // that cost most
    Nanos cost = 0;
    bool counts = false;
  };

  void make_room(std::vector<Nanos>& times);
  void settle();
  [[nodiscard]] const Step& ago(std::size_t steps) const {
    return history_[(next_ + kHistory - 1 - steps) % kHistory];
  }
  [[nodiscard]] std::size_t held_up_by(int rank) const;
  [[nodiscard]] bool is_lasting(int rank, std::uint64_t step);
  [[nodiscard]] StragglerNotice described(int rank) const;

  StragglerOptions options_;
  std::vector<std::vector<Nanos>> times_;  // by rank, since the last settle(), and one before
  std::vector<std::vector<Nanos>> apart_;  // the same of what not all ranks take part in
  std::vector<Complete> complete_;
  std::vector<Nanos> cost_;  // by rank, of the current step
  Nanos counted_until_ = 0;
  Nanos last_end_ = 0;

  std::array<Step, kHistory> history_{};
  std::size_t next_ = 0;
  std::size_t steps_ = 0;  // in history_
  std::function<bool(int, Nanos)> excuse_;
  std::uint64_t excused_until_ = 0;
  int named_ = -1;
  StragglerNotice notice_;     // of named_
  int suspect_ = -1;           // would be named, if it has been for long enough
  StragglerNotice suspected_;  // when that began
  struct Spells {
    std::uint64_t patience = 0;  // steps that are long enough
    std::uint64_t ended = 0;     // the last one that was told, in steps
  };
  std::vector<Spells> spells_;  // by rank
};

/// The sentence for the log. `where`: "host b, pid 4711".
std::string straggler_text(const StragglerNotice& notice, const std::string& where);

}  // namespace hvdtune
