#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/coordination/coordinator.h"
#include "engine/job/stall_options.h"
#include "transport/meeting/host_session.h"

namespace hvdtune {

/// What to do about tensors that some ranks wait for and others do not submit.
struct StallVerdict {
  std::vector<int> ask_stacks_of;  ///< ranks whose Python stack belongs in the report
  std::uint64_t question = 0;      ///< the number of that question
  std::string report;              ///< to log now; empty = nothing
  std::size_t tensors = 0;         ///< number of those that wait too long
  bool shut_down = false;          ///< the limit is exceeded: end the job
};

/// The coordinator's stall check. A report takes two calls: the first finds tensors that wait too
/// long and asks the missing ranks for their stacks; the second writes the report, after the ranks
/// have answered or their time is over.
class StallWatch {
 public:
  StallWatch(const StallOptions& options, std::vector<PeerInfo> peers);

  /// When check() is due; kForever if the check is off.
  [[nodiscard]] Nanos deadline() const { return next_; }
  StallVerdict check(const Coordinator& coordinator, Nanos now);
  /// Takes a rank's answer; ignores answers to earlier questions.
  void stack_of(int rank, std::uint64_t question, std::string text);

 private:
  struct Waiting {
    const TensorEntry* entry;
    std::vector<int> missing;
  };
  [[nodiscard]] std::vector<Waiting> waiting_longer(const Coordinator& coordinator, Nanos now,
                                                    Nanos limit) const;
  [[nodiscard]] std::string worded(const Coordinator& coordinator,
                                   const std::vector<Waiting>& waiting, Nanos now) const;

  StallOptions options_;
  std::vector<PeerInfo> peers_;
  Nanos next_;
  Nanos last_report_ = 0;
  std::set<int> asked_;
  std::map<int, std::string> stacks_;
  std::uint64_t question_ = 0;  // the last one
  bool asking_ = false;
};

}  // namespace hvdtune
