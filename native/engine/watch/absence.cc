// What a rank does when others keep it waiting in the middle of an operation. The stall check of
// the coordinator cannot see that: all ranks have announced, and its own rank may be the one that
// waits.
#include "base/log.h"
#include "engine/engine.h"
#include "observe/stall.h"

namespace hvdtune {
namespace {

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

}  // namespace

/// Called while this rank, one of those that wait, runs a batch or changes what batches run on.
void Engine::on_absence(const std::vector<int>& ranks, Nanos waited) {
  std::vector<StalledTensor> tensors;
  if (const auto* batch = executor_.running()) {
    for (const OperationPtr& operation : *batch) {
      tensors.push_back({operation->request.name, waited, ranks});
    }
  } else {
    tensors.push_back({"(a change of settings or process sets)", waited, ranks});
  }
  std::vector<RankState> states;
  for (const int rank : ranks) {
    const PeerInfo& peer = session_.peers[static_cast<std::size_t>(rank)];
    RankState state;
    state.rank = rank;
    state.host = peer.hostname;
    state.pid = peer.pid;
    state.last_operation = tensors.back().name;
    state.process_state = process_state(rank);
    states.push_back(std::move(state));
  }
  record_stall(tensors.front().name + " and " + std::to_string(tensors.size() - 1) +
               " more wait for ranks " + wire::ranks_text({ranks.begin(), ranks.end()}));
  const StallOptions& limits = options_.stall;
  const std::string report =
      absence_report(tensors, states, seconds(limits.warning), seconds(limits.shutdown));
  status_.stalled(report, tensors.size(), monotonic_now());
  if (limits.shutdown < limits.warning || waited < limits.shutdown) {
    HVD_LOG_RANK(kWarning, rank_) << report;
    return;
  }
  HVD_LOG_RANK(kError, rank_) << report;
  arena_.abort("Horovod has been shut down: rank " + std::to_string(ranks.front()) +
               " did not go on in " + tensors.front().name +
               " for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

}  // namespace hvdtune
