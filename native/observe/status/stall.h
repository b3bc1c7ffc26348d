#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// A tensor that has waited too long.
struct StalledTensor {
  std::string name;
  Nanos waiting = 0;
  std::vector<int> missing_ranks;       ///< global ranks
  std::vector<int> waiting_ranks = {};  ///< empty: not known
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

/// The report for the log, for one screen: what happened, who waits for what ("ranks 0-2,4 wait for
/// 3 tensors (a, b, c) since 61 s; missing: rank 3"), `Missing ranks:` with one line
/// `<rank>: [names]` each (`<rank>!:` beyond the shutdown limit), which of these to look at first,
/// if others of them wait themselves, then what is known about each of `states`, and, if the limit
/// is exceeded, that the job ends. No newline at the end.
///
/// `starting`: no step has ended yet, so it may be no more than a start that takes its time.
///
/// Of Python stacks the main thread's is shown, equal ones once, at most three.
std::string stall_report(const std::vector<StalledTensor>& stalled,
                         const std::vector<RankState>& states, double warning_seconds,
                         double shutdown_seconds, bool starting = false);

/// The same for tensors that all ranks have submitted, in whose operation some ranks (the missing
/// ones) do not go on.
std::string absence_report(const std::vector<StalledTensor>& stalled,
                           const std::vector<RankState>& states, double warning_seconds,
                           double shutdown_seconds);

/// Rank 0 does not run, so that it cannot report anything. `rank`: who says so, waiting for
/// `names`; `ends`: the job is shut down for it.
std::string silence_report(int rank, std::vector<std::string> names, Nanos waited,
                           const RankState& coordinator, bool ends);

/// "0-2,4": ascending numbers as ranges.
std::string ranges_text(const std::vector<int>& numbers);

/// "running", "sleeping", "stopped" … of a process of this host, from /proc; "gone" if it is none.
std::string process_state_of(int pid);

}  // namespace hvdtune
