#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// When to complain about tensors that some ranks never submit.
struct StallOptions {
  bool enabled = true;
  double warning_seconds = 60;  ///< period of the check, and the wait that is reported
  double shutdown_seconds = 0;  ///< the wait that ends the job; 0 = never
};

/// A tensor that the coordinator has from some ranks only.
struct WaitingTensor {
  std::string name;
  Nanos since = 0;                 ///< its first announcement
  std::vector<int> missing_ranks;  ///< global ranks
};

/// A tensor that has waited too long.
struct StalledTensor {
  std::string name;
  Nanos waiting = 0;
  std::vector<int> missing_ranks;  ///< global ranks
};

/// What is known about a rank that others wait for. Empty texts and negative numbers: not known.
struct RankState {
  int rank = 0;
  std::string host = {};
  int pid = -1;
  std::string last_operation = {};  ///< the last that it submitted; empty if it submitted none
  Nanos since_last = -1;
  std::string process_state = {};  ///< as process_state_of
  std::string python_stack = {};   ///< one frame a line, or several
};

/// Decides when to look and what is too old. Used by one thread at a time; does no I/O.
class StallInspector {
 public:
  struct Findings {
    std::vector<StalledTensor> stalled;  ///< longer than the warning time; sorted by name
    bool shutdown = false;               ///< one of them is over the shutdown limit
  };

  /// \param now the first check is due one period later
  StallInspector(const StallOptions& options, Nanos now);

  /// For the log: why the shutdown limit is not in force although one was given. Mostly empty.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  /// The options in force.
  [[nodiscard]] const StallOptions& options() const { return options_; }
  /// When due() becomes true; kForever if the check is off.
  [[nodiscard]] Nanos next_check() const { return next_check_; }

  /// True once per period.
  bool due(Nanos now);

  [[nodiscard]] Findings inspect(Nanos now, const std::vector<WaitingTensor>& waiting) const;

 private:
  StallOptions options_;
  std::string warning_;
  Nanos next_check_ = kForever;
};

/// The report for the log: what happened, `Missing ranks:` with one line `<rank>: [names]` each
/// (`<rank>!:` beyond the shutdown limit), then what is known about each of `states`, and, if the
/// limit is exceeded, that the job ends. No newline at the end.
std::string stall_report(const std::vector<StalledTensor>& stalled,
                         const std::vector<RankState>& states, double warning_seconds,
                         double shutdown_seconds);

/// "running", "sleeping", "stopped" … of a process of this host, from /proc; "gone" if it is none.
std::string process_state_of(int pid);

}  // namespace hvdtune
