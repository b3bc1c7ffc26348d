#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "observe/stragglers/chance.h"
#include "observe/stragglers/one_time.h"

namespace hvdtune {

struct StragglerOptions {
  /// The least that one must cost, as a share of the step; 0 = nobody is ever named.
  double share = 0.05;
  /// And in time: below it, waking up and scheduling are all there is to see.
  Nanos least = 500 * kMicrosecond;
};

/// One that holds the others up step after step, or does so no longer.
struct StragglerNotice {
  bool begins = true;
  int who = 0;                   ///< the number of a rank, or of a host
  Nanos late = 0;                ///< what it costs a step, median
  double share = 0;              ///< the same as a share of the step's duration, median
  std::uint64_t since_step = 0;  ///< the first of the steps it held up
  Nanos since = 0;               ///< when that step ended
  std::uint64_t until_step = 0;  ///< the last one seen
  std::size_t times = 0;         ///< of the last `looked_at` steps, how many it held up
  std::size_t looked_at = 0;
};

/// What one of them has cost lately.
struct Lateness {
  Nanos late = 0;         ///< mean of the steps looked at, without what takes long once
  double share = 0;       ///< of these steps' time
  double last_share = 0;  ///< of these steps, how many it was the last in
};

/// Whom to name, of several that each step has cost something: ranks, or hosts. One thread at a
/// time; times are of one clock.
///
/// The test: a step counts against the one that costs most in it if that is at least
/// `options.share` of the step and `options.least`. Named is one against which 36 of the last 40
/// steps count, or 24 of them (60 %, as in a report), if in these 40 steps it costs `options.share`
/// of the time, and equal ones would cause as much with a probability below 1e-7
/// (`caused_by_chance`). It holds the others up no longer when fewer than 16 count. Those that take
/// turns in being the last (noise; more ranks than CPUs) come near neither: of two equal ones, one
/// of which costs that much in every step by mere chance, one has 36 in any 40 steps with
/// probability 2e-7 (binomial tail), and that falls steeply with their number.
///
/// One that is late now and then, for a while each time, would fill the log. Where a spell lasted
/// less than `kLasting` steps, it has to hold the others up for `kFirstPatience` steps longer
/// before it is named again, and for twice as long after each such spell; until it has not been
/// named for `kMostPatience` steps.
class Blame {
 public:
  static constexpr std::size_t kWindow = 40;
  static constexpr std::size_t kNamed = 36;
  static constexpr std::size_t kMost = 24;  ///< enough, if it is not by chance
  static constexpr double kRare = 1e-7;     ///< that is less likely to be chance
  static constexpr std::size_t kForgiven = 16;
  static constexpr std::uint64_t kLasting = 1000;
  static constexpr std::uint64_t kFirstPatience = 200;
  static constexpr std::uint64_t kMostPatience = 12'800;

  /// `parties`: how many they are.
  Blame(const StragglerOptions& options, std::size_t parties);

  /// A step of this `duration` ends; `cost`: by party, of its time. The notice that is due now, if
  /// any: at most one.
  std::optional<StragglerNotice> end_step(std::uint64_t step, Nanos now, Nanos duration,
                                          const std::vector<Nanos>& cost);

  /// Asked before one is named, with what it costs a step: true if there is a reason that is not
  /// its own. It is asked again after kWindow steps.
  void set_excuse(std::function<bool(int who, Nanos late)> excuse) { excuse_ = std::move(excuse); }

  /// By party, over the last kWindow steps or as many as there were.
  [[nodiscard]] std::vector<Lateness> lately() const;
  /// What the same steps were held up by.
  [[nodiscard]] std::vector<Charge> charges() const;
  /// The one that is named now, or -1.
  [[nodiscard]] int named() const { return named_; }
  struct Suspect {
    int who;
    Nanos late;  ///< what it costs a step, median of the last kWindow that count against it
  };
  /// The one that is named now, or would be, if it were not for patience or an excuse.
  [[nodiscard]] std::optional<Suspect> suspect() const;

 private:
  static constexpr std::size_t kHistory = 128;
  struct Step {
    std::uint64_t number = 0;
    Nanos end = 0;
    Nanos duration = 0;
    int who = -1;  // that cost most
    Nanos cost = 0;
    bool counts = false;
  };

  [[nodiscard]] const Step& ago(std::size_t steps) const {
    return history_[(next_ + kHistory - 1 - steps) % kHistory];
  }
  std::optional<StragglerNotice> begin(const Step& done);
  std::optional<StragglerNotice> go_on(const Step& done);
  [[nodiscard]] std::size_t held_up_by(int who) const;
  [[nodiscard]] bool stands_out(int who) const;
  [[nodiscard]] std::vector<Nanos> durations() const;
  [[nodiscard]] bool is_lasting(int who, std::uint64_t step);
  [[nodiscard]] StragglerNotice described(int who) const;

  StragglerOptions options_;
  std::array<Step, kHistory> history_{};
  std::size_t next_ = 0;
  std::size_t steps_ = 0;  // in history_
  OneTime one_time_;
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
  std::vector<Spells> spells_;  // by party
};

}  // namespace hvdtune
