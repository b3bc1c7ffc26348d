#include "engine/coordination/stall_watch.h"

#include <algorithm>

#include "base/log.h"
#include "observe/status/stall.h"

namespace hvdtune {
namespace {

// How long ranks may take to send their stacks; a stopped rank never answers.
constexpr Nanos kPatience = kSecond;
// Checks per warning period: a tensor is reported at most half a period late.
constexpr int kChecksPerPeriod = 2;

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

}  // namespace

StallWatch::StallWatch(const StallOptions& options, std::vector<PeerInfo> peers)
    : options_(options), peers_(std::move(peers)) {
  if (options_.shutdown > 0 && options_.shutdown < options_.warning) {
    HVD_LOG_RANK(kWarning, 0) << "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS ("
                              << seconds(options_.shutdown)
                              << ") is below HOROVOD_STALL_CHECK_TIME_SECONDS ("
                              << seconds(options_.warning) << "); stalls will not end the job";
    options_.shutdown = 0;
  }
  const bool on = options_.enabled && options_.warning > 0;
  next_ = on ? monotonic_now() + options_.warning : kForever;
}

std::vector<StallWatch::Waiting> StallWatch::waiting_longer(const Coordinator& coordinator,
                                                            Nanos now, Nanos limit) const {
  std::vector<Waiting> found;
  for (const TensorEntry* entry : coordinator.incomplete()) {
    if (now - entry->first_time < limit) continue;
    found.push_back({entry, coordinator.missing(*entry)});
  }
  return found;
}

StallVerdict StallWatch::check(const Coordinator& coordinator, Nanos now) {
  StallVerdict verdict;
  const std::vector<Waiting> waiting = waiting_longer(coordinator, now, options_.warning);
  next_ = now + options_.warning / kChecksPerPeriod;
  verdict.tensors = waiting.size();
  if (waiting.empty()) {
    asking_ = false;
    return verdict;
  }
  if (!asking_) {
    if (last_report_ != 0 && now - last_report_ < options_.warning) return verdict;
    asking_ = true;
    stacks_.clear();
    asked_.clear();
    for (const Waiting& one : waiting) asked_.insert(one.missing.begin(), one.missing.end());
    verdict.ask_stacks_of.assign(asked_.begin(), asked_.end());
    verdict.question = ++question_;
    next_ = now + kPatience;
    return verdict;
  }
  asking_ = false;
  last_report_ = now;
  verdict.report = worded(coordinator, waiting, now);
  verdict.shut_down =
      options_.shutdown > 0 && !waiting_longer(coordinator, now, options_.shutdown).empty();
  return verdict;
}

void StallWatch::stack_of(int rank, std::uint64_t question, std::string text) {
  if (question != question_) return;
  stacks_[rank] = std::move(text);
  const bool complete = std::all_of(asked_.begin(), asked_.end(),
                                    [this](int asked) { return stacks_.contains(asked); });
  if (asking_ && complete) next_ = 0;  // no need to wait longer
}

std::string StallWatch::worded(const Coordinator& coordinator, const std::vector<Waiting>& waiting,
                               Nanos now) const {
  std::vector<StalledTensor> tensors;
  std::set<int> missing;
  for (const Waiting& one : waiting) {
    std::vector<int> waiting_ranks;
    for (std::size_t rank = 0; rank < one.entry->by.size(); ++rank) {
      if (one.entry->by[rank]) waiting_ranks.push_back(static_cast<int>(rank));
    }
    tensors.push_back({one.entry->description.name, now - one.entry->first_time, one.missing,
                       std::move(waiting_ranks)});
    missing.insert(one.missing.begin(), one.missing.end());
  }
  std::vector<RankState> ranks;
  for (const int rank : missing) {
    const PeerInfo& peer = peers_[static_cast<std::size_t>(rank)];
    RankState state;
    state.rank = rank;
    state.host = peer.hostname;
    state.pid = peer.pid;
    Nanos last = 0;
    state.last_operation = coordinator.last_announced(rank, last);
    state.since_last = last == 0 ? 0 : now - last;
    if (peer.here) state.process_state = process_state_of(peer.pid);
    const auto stack = stacks_.find(rank);
    if (stack != stacks_.end()) state.python_stack = stack->second;
    ranks.push_back(std::move(state));
  }
  const bool starting = coordinator.steps().step() <= 1;
  return stall_report(tensors, ranks, seconds(options_.warning), seconds(options_.shutdown),
                      starting);
}

}  // namespace hvdtune
