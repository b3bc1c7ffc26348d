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

/// State of a rank that others wait for. Empty texts and negative numbers: not known.
struct RankState {
  int rank = 0;
  std::string host = {};
  int pid = -1;
  std::string last_operation = {};  ///< the last one it submitted; empty if none
  Nanos since_last = -1;
  std::string process_state = {};  ///< as process_state_of
  std::string python_stack = {};   ///< one or more frames per line
};

/// The report for the log, at most one screen: what happened, which ranks wait for which tensors
/// ("ranks 0-2,4 wait for 3 tensors (a, b, c) since 61 s; missing: rank 3"), `Missing ranks:` with
/// one line `<rank>: [names]` each (`<rank>!:` beyond the shutdown limit), which of these to look
/// at first, if some of them wait themselves. Then the known facts about each of `states` and, if
/// the limit is exceeded, that the job ends. No newline at the end.
///
/// `starting`: no step has ended yet, so it may just be a slow start.
///
/// The report shows the main thread's Python stacks, equal ones once, at most three.
std::string stall_report(const std::vector<StalledTensor>& stalled,
                         const std::vector<RankState>& states, double warning_seconds,
                         double shutdown_seconds, bool starting = false);

/// The same for tensors that all ranks have submitted, if some ranks (the missing ones) do not go
/// on in the operation.
std::string absence_report(const std::vector<StalledTensor>& stalled,
                           const std::vector<RankState>& states, double warning_seconds,
                           double shutdown_seconds);

/// The report if rank 0 does not run and so cannot report. `rank`: the reporting rank, which waits
/// for `names`; `ends`: the job is shut down for this reason.
std::string silence_report(int rank, std::vector<std::string> names, Nanos waited,
                           const RankState& coordinator, bool ends);

/// "0-2,4": ascending numbers as ranges.
std::string ranges_text(const std::vector<int>& numbers);

/// "running", "sleeping", "stopped" … of a process of this host, from /proc; "gone" if there is no
/// such process.
std::string process_state_of(int pid);

}  // namespace hvdtune
