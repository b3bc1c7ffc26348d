#include "engine/watch/stall_reports.h"

#include <utility>

#include "base/log.h"
#include "observe/status/stall.h"

namespace hvdtune {
namespace {

double in_seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

}  // namespace

void StallReports::absence(const std::vector<OperationPtr>* batch, const std::vector<int>& ranks,
                           Nanos waited) {
  std::vector<StalledTensor> tensors;
  if (batch != nullptr) {
    for (const OperationPtr& operation : *batch) {
      tensors.push_back({operation->request.name, waited, ranks});
    }
  } else {
    tensors.push_back({"(a change of settings or process sets)", waited, ranks});
  }
  std::vector<RankState> states;
  for (const int rank : ranks) {
    const PeerInfo& peer = job_.session.peers[static_cast<std::size_t>(rank)];
    RankState state;
    state.rank = rank;
    state.host = peer.hostname;
    state.pid = peer.pid;
    state.last_operation = tensors.back().name;
    state.process_state = job_.process_state(rank);
    states.push_back(std::move(state));
  }
  recorder_.stall(tensors.front().name + " and " + std::to_string(tensors.size() - 1) +
                  " more wait for ranks " + wire::ranks_text({ranks.begin(), ranks.end()}));
  const std::string report =
      absence_report(tensors, states, in_seconds(limits_.warning), in_seconds(limits_.shutdown));
  status_.stalled(JobStatus::StallCause::kRanks, report, tensors.size(), monotonic_now());
  if (!limits_.ends_job(waited)) {
    HVD_LOG_RANK(kWarning, job_.rank) << report;
    return;
  }
  HVD_LOG_RANK(kError, job_.rank) << report;
  job_.arena.abort("Horovod has been shut down: rank " + std::to_string(ranks.front()) +
                   " did not go on in " + tensors.front().name +
                   " for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

void StallReports::slow_gpu(const std::string& first_name, std::uint64_t tensors, Nanos waited) {
  const std::string report = "rank " + std::to_string(job_.rank) +
                             ": its GPU has been working on " + first_name + " for " +
                             std::to_string(waited / kSecond) +
                             " s; most likely it waits for the GPU of another rank, which is "
                             "stopped or busy";
  recorder_.stall(report);
  status_.stalled(JobStatus::StallCause::kGpu, report, tensors, monotonic_now());
  HVD_LOG_RANK(kWarning, job_.rank) << report;
  if (!limits_.ends_job(waited)) return;
  job_.arena.abort("Horovod has been shut down: the GPU of rank " + std::to_string(job_.rank) +
                   " was not done with " + first_name +
                   " for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

void StallReports::silence(std::vector<std::string> names, Nanos waited) {
  RankState state;
  state.rank = 0;
  state.host = job_.session.peers[0].hostname;
  state.pid = job_.session.peers[0].pid;
  state.process_state = job_.process_state(0);
  const bool ends = limits_.ends_job(waited);
  const std::string report = silence_report(job_.rank, std::move(names), waited, state, ends);
  if (!ends) {
    HVD_LOG_RANK(kWarning, job_.rank) << report;
    return;
  }
  HVD_LOG_RANK(kError, job_.rank) << report;
  job_.arena.abort(
      "Horovod has been shut down: rank 0 did not go on for longer than "
      "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

}  // namespace hvdtune
