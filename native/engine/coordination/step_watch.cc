#include "engine/coordination/step_watch.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/job/blocked.h"
#include "observe/status/stall.h"

namespace hvdtune {

StepWatch::StepWatch(const Job& job, const StragglerOptions& options, RecordingControl& recording,
                     JobStatus& status, const BlockedCallers& callers)
    : job_(job),
      least_(options.least),
      recording_(recording),
      status_(status),
      callers_(callers),
      stragglers_(options, job.hosts()) {
  // For ranks on other hosts it is not known whether they wait for a CPU.
  if (!job.arena.oversubscribed() || options.share <= 0 || job.session.across_hosts()) return;
  std::vector<int> pids;
  for (const PeerInfo& peer : job.session.peers) pids.push_back(peer.here ? peer.pid : 0);
  cpu_waits_.emplace(std::move(pids));
  // If ranks take turns, one may be the last only because of the order of turns.
  stragglers_.set_excuse(
      [this](int rank, Nanos late) { return cpu_waits_->excess(rank, step_) * 2 >= late; });
}

void StepWatch::complete(const TensorEntry& entry) {
  if (!is_of_all_ranks(entry) || !entry.absent.empty()) return;
  const Nanos apart = job_.arena.apart(entry.last_rank).load(std::memory_order_relaxed);
  // A later time is from after the announcement, or from another clock.
  if (apart != 0 && apart <= entry.last_time) stragglers_.apart(entry.last_rank, apart);
  stragglers_.complete(entry.last_rank, entry.last_time, who_waits_for(entry), entry.times);
}

/// Whether ranks other than the last one to announce the tensor are blocked on it.
StragglerWatch::Awaited StepWatch::who_waits_for(const TensorEntry& entry) const {
  using Awaited = StragglerWatch::Awaited;
  if (entry.last_time - entry.first_time < kMicrosecond) return Awaited::kByNobody;  // all at once
  const auto host = [this](int rank) {
    return job_.session.across_hosts() ? job_.session.host_of[static_cast<std::size_t>(rank)] : 0;
  };
  Awaited found = Awaited::kByNobody;
  for (int rank = 0; rank < job_.size; ++rank) {
    if (rank == entry.last_rank) continue;
    if (job_.arena.doorbell(rank).blocked_on.load(std::memory_order_relaxed) == blocked::kNothing) {
      continue;
    }
    if (host(rank) != host(entry.last_rank)) return Awaited::kElsewhere;
    found = Awaited::kOnItsHost;
    if (!job_.session.across_hosts()) break;  // there are no other hosts
  }
  return found;
}

void StepWatch::scheduled(const Coordinator& coordinator) {
  status_.scheduled(coordinator.batches(), coordinator.bytes_scheduled());
  const std::uint64_t step = coordinator.steps().step();
  if (step == step_) return;
  step_ = step;
  const Nanos now = monotonic_now();
  // Shorter steps cannot count against a rank, and the check takes as long as such a step.
  if (cpu_waits_ && coordinator.steps().last().duration >= least_) {
    cpu_waits_->step_ended(step);
  }
  const StragglerWatch::Notices notices = stragglers_.end_step(step - 1, now);
  if (coordinator.steps().last().end != 0) {  // it is not known when the first began
    status_.step(coordinator.steps().last(), callers_.time(), stragglers_);
  }
  if (notices.rank) {
    const int rank = notices.rank->who;
    const std::string name = "rank " + std::to_string(rank);
    const std::string text =
        straggler_text(*notices.rank, name + " (" + job_.where(rank) + ")", "the other ranks");
    tell(*notices.rank, name, text, rank, now);
  }
  if (notices.host) {
    const std::vector<int>& ranks = stragglers_.ranks_of(notices.host->who);
    const std::string name =
        "host " + job_.session.peers[static_cast<std::size_t>(ranks.front())].hostname;
    const std::string text = straggler_text(
        *notices.host, name + " (ranks " + ranges_text(ranks) + ")", "the other hosts");
    tell(*notices.host, name, text, -1, now);
  }
}

/// `rank`: -1 = it is a host.
void StepWatch::tell(const StragglerNotice& notice, const std::string& name,
                     const std::string& text, int rank, Nanos now) {
  HVD_LOG_RANK(kWarning, job_.rank) << text;
  Timeline& timeline = recording_.timeline();
  if (timeline.active()) {
    timeline.instant("STRAGGLER " + name + (notice.begins ? " is late" : " is no longer late"),
                     now);
  }
  recording_.recorder().capture().mark(capture::MarkKind::kStraggler, rank, text);
}

}  // namespace hvdtune
