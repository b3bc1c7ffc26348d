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
  /// The least cost, as a share of the step, for being named; 0 = nobody is ever named.
  double share = 0.05;
  /// The least cost in time: shorter delays are only wake-ups and scheduling.
  Nanos least = 500 * kMicrosecond;
};

/// A rank or host that holds the others up step after step, or no longer does so.
struct StragglerNotice {
  bool begins = true;
  int who = 0;                   ///< the number of a rank, or of a host
  Nanos late = 0;                ///< its cost per step, median
  double share = 0;              ///< the same as a share of the step's duration, median
  std::uint64_t since_step = 0;  ///< the first of the steps it held up
  Nanos since = 0;               ///< when that step ended
  std::uint64_t until_step = 0;  ///< the last one seen
  std::size_t times = 0;         ///< number of the last `looked_at` steps that it held up
  std::size_t looked_at = 0;
};

/// The recent cost of a rank or host.
struct Lateness {
  Nanos late = 0;         ///< mean of the recent steps, without those that take long only once
  double share = 0;       ///< of these steps' time
  double last_share = 0;  ///< share of these steps in which it was the last
};

/// Decides which party to name. The parties are ranks, or hosts; in each step, each of them has a
/// cost. One thread at a time; times are of one clock.
///
/// The test: a step counts against the party with the highest cost in it if that is at least
/// `options.share` of the step and `options.least`. A party is named if 36 of the last 40 steps
/// count against it. It is also named if 24 of them do (60 %, as in a report), it costs
/// `options.share` of the time of these 40 steps, and equal parties would cause as much with a
/// probability below 1e-7 (`caused_by_chance`). It no longer holds the others up when fewer than 16
/// steps count. Parties that are the last in turn (noise; more ranks than CPUs) come near neither
/// number: if one of two equal parties costs that much in every step by chance alone, one of them
/// has 36 in any 40 steps with probability 2e-7 (binomial tail), and that falls steeply with the
/// number of parties.
///
/// A party can be late by chance in dozens of steps of a few milliseconds, so nobody is named
/// before `kLeastSpell` has passed since its first late step.
///
/// A party that is late from time to time, for a while each time, would fill the log. If a spell
/// lasted less than `kLasting` steps, the party must hold the others up for `kFirstPatience` more
/// steps before it is named again, and for twice as long after each such spell, until it has not
/// been named for `kMostPatience` steps.
class Blame {
 public:
  static constexpr std::size_t kWindow = 40;
  static constexpr std::size_t kNamed = 36;
  static constexpr std::size_t kMost = 24;  ///< enough, if it is not by chance
  static constexpr double kRare = 1e-7;     ///< a lower probability is not chance
  static constexpr std::size_t kForgiven = 16;
  static constexpr Nanos kLeastSpell = 500 * kMillisecond;
  static constexpr std::uint64_t kLasting = 1000;
  static constexpr std::uint64_t kFirstPatience = 200;
  static constexpr std::uint64_t kMostPatience = 12'800;

  /// `parties`: their number.
  Blame(const StragglerOptions& options, std::size_t parties);

  /// A step of this `duration` ends; `cost`: by party, part of that time. Returns the notice that
  /// is due now, if any.
  std::optional<StragglerNotice> end_step(std::uint64_t step, Nanos now, Nanos duration,
                                          const std::vector<Nanos>& cost);

  /// Called before a party is named, with its cost per step; returns true if the reason is not its
  /// own. It is called again after kWindow steps.
  void set_excuse(std::function<bool(int who, Nanos late)> excuse) { excuse_ = std::move(excuse); }

  /// By party, over the last kWindow steps or as many as there were.
  [[nodiscard]] std::vector<Lateness> lately() const;
  /// The party that held up each of the same steps, with its cost.
  [[nodiscard]] std::vector<Charge> charges() const;
  /// The party that is named now, or -1.
  [[nodiscard]] int named() const { return named_; }
  struct Suspect {
    int who;
    Nanos late;  ///< its cost per step, median of the last kWindow steps that count against it
  };
  /// The party that is named now, or would be without patience or an excuse.
  [[nodiscard]] std::optional<Suspect> suspect() const;

 private:
  static constexpr std::size_t kHistory = 128;
  struct Step {
    std::uint64_t number = 0;
    Nanos end = 0;
    Nanos duration = 0;
    int who = -1;  // the party that cost most
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
  [[nodiscard]] bool is_lasting(const Step& done);
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
  int suspect_ = -1;           // will be named if it goes on for long enough
  StragglerNotice suspected_;  // when that began
  struct Spells {
    std::uint64_t patience = 0;  // number of steps that is long enough
    std::uint64_t ended = 0;     // step at which the last notice ended
  };
  std::vector<Spells> spells_;  // by party
};

}  // namespace hvdtune
