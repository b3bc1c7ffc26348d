#include "engine/coordination/coordination.h"

#include <algorithm>

#include "base/log.h"
#include "base/time_space.h"
#include "engine/job/blocked.h"
#include "engine/operation/timeline_rows.h"
#include "transport/control/bridge.h"

namespace hvdtune {
namespace {

// Until evicted slots are released, announcements may arrive without a ring
// (Submissions::announce); and nothing rings when the slowest rank has passed the removal of a
// process set.
constexpr Nanos kEvictionPoll = 5 * kMillisecond;

/// By rank, whether its times mean nothing here: other hosts have other clocks, and so may
/// containers.
std::vector<bool> other_clocks(const HostSession& session) {
  std::vector<bool> others;
  const std::string own = time_space();
  for (std::size_t rank = 0; rank < session.peers.size(); ++rank) {
    const PeerInfo& peer = session.peers[rank];
    const std::string its = peer.here ? time_space(peer.pid) : std::string();
    const bool differs = !own.empty() && !its.empty() && its != own;
    others.push_back(!session.is_here(static_cast<int>(rank)) || differs);
  }
  return others;
}

}  // namespace

Coordination::Coordination(const Job& job, RecordingControl& recording, JobStatus& status,
                           const BlockedCallers& callers, const Completions& completions,
                           const CoordinatorOptions& options, const ProcessSets& sets,
                           const wire::RuntimeSettings& settings, const StallOptions& stall,
                           const StragglerOptions& straggler)
    : job_(job),
      recording_(recording),
      recorder_(recording.recorder()),
      timeline_(recording.timeline()),
      status_(status),
      completions_(completions),
      schedule_(job.arena.schedule()),
      coordinator_(options, sets.all(), settings),
      stalls_(stall, job.session.peers),
      step_watch_(job, straggler, recording, status, callers),
      other_clock_(other_clocks(job.session)) {
  coordinator_.set_observer(this);
  for (int rank = 0; rank < job.size; ++rank) {
    announcements_.push_back(job.arena.announcements(rank));
  }
}

Nanos Coordination::deadline(const DriveLock& /*held*/) const {
  Nanos deadline = std::min(coordinator_.deadline(), stalls_.deadline());
  const Nanos now = monotonic_now();
  if (!backlog_.empty()) deadline = std::min(deadline, now + kRetryFullRing);
  if (coordinator_.awaits_release()) deadline = std::min(deadline, now + kEvictionPoll);
  return deadline;
}

bool Coordination::coordinate(const DriveLock& lock) {
  looks_.fetch_add(1);
  recording_.look_for_failure(lock);
  // A rank had made its announcements before it passed an eviction; they are read below.
  const std::uint64_t passed_by_all = schedule_.slowest();
  const bool heard = read_announcements(lock);
  release_what_all_have_passed(passed_by_all);
  // Announcements made before this, which did not ring, are read in the next turn.
  job_.arena.joined().store(static_cast<std::uint32_t>(coordinator_.joined()),
                            std::memory_order_seq_cst);
  const Nanos now = monotonic_now();
  if (now >= stalls_.deadline()) check_stalls(lock, now);
  blocked_on_.clear();
  for (int rank = 0; rank < job_.size; ++rank) {
    blocked_on_.push_back(job_.arena.doorbell(rank).blocked_on.load(std::memory_order_seq_cst));
  }
  if (completions_.expected()) blocked_on_.push_back(blocked::kEverything);
  std::vector<wire::Schedule> schedules;
  coordinator_.schedule(now, blocked_on_, schedules);
  job_.arena.collecting().store(coordinator_.has_ready() ? 1 : 0, std::memory_order_seq_cst);
  if (!schedules.empty()) {
    if (timeline_.active() && timeline_.mark_cycles()) timeline_.cycle_start(now);
    if (recorder_.active() && recording_.marks_cycles(lock)) {
      recorder_.capture().mark(capture::MarkKind::kCycle, 0, {});
    }
    publish(lock, schedules);
    step_watch_.scheduled(coordinator_);
  }
  status_.waiting(coordinator_.open() - coordinator_.ready(), coordinator_.ready(),
                  coordinator_.scheduled());
  looks_.fetch_add(1);
  return heard || !schedules.empty();
}

/// Releases slots and sets whose end all ranks have read, so that they can be reused.
void Coordination::release_what_all_have_passed(std::uint64_t position) {
  for (const wire::Slot slot : coordinator_.release_evicted(position)) {
    job_.arena.slot_round(slot).reset();
    if (job_.bridge != nullptr) job_.bridge->release_slot(slot);
  }
  for (const std::uint32_t set : coordinator_.release_sets(position)) {
    job_.arena.reset_cells(static_cast<int>(set));
    if (job_.session.heap) job_.session.heap->reset_work_cell(static_cast<int>(set));
    if (job_.bridge != nullptr) job_.bridge->release_set(set);
  }
}

bool Coordination::read_announcements(const DriveLock& lock) {
  bool heard = false;
  const Nanos now = monotonic_now();
  for (int rank = 0; rank < job_.size; ++rank) {
    heard |= announcements_[static_cast<std::size_t>(rank)].consume(
        [&](std::string_view bytes) { hear(lock, rank, bytes, now); });
  }
  return heard;
}

void Coordination::hear(const DriveLock& lock, int rank, std::string_view bytes, Nanos now) {
  const bool other_clock = other_clock_[static_cast<std::size_t>(rank)];
  if (wire::is_announce_slot(bytes)) {
    wire::AnnouncedSlot announced = wire::decode_announce_slot(bytes);
    if (other_clock) announced.time = now;
    return coordinator_.announce(rank, announced, now);
  }
  wire::Announce announce = wire::decode_announce(bytes);
  if (other_clock) announce.time = now;
  switch (announce.type) {
    case wire::AnnounceType::kSlot:
    case wire::AnnounceType::kRequest:
      coordinator_.announce(rank, std::move(announce));
      break;
    case wire::AnnounceType::kShutdown:
      announce_end(lock, "rank " + std::to_string(rank) +
                             " shut down, or its program ended, while this operation was waiting");
      break;
    case wire::AnnounceType::kStackReply:
      stalls_.stack_of(rank, announce.question, std::move(announce.text));
      break;
    case wire::AnnounceType::kTimeline:
      publish(lock, {recording_.decide(lock, rank, std::move(announce.timeline))});
      break;
  }
}

void Coordination::announce_end(const DriveLock& lock, const std::string& why) {
  if (job_.arena.ended().exchange(1) != 0) return;  // several ranks may shut down at once
  wire::Schedule end;
  end.type = wire::ScheduleType::kShutdown;
  end.status = {ErrorKind::kShutdown, "Horovod has been shut down: " + why + "."};
  publish(lock, {end});
}

void Coordination::publish(const DriveLock& /*held*/,
                           const std::vector<wire::Schedule>& schedules) {
  for (const wire::Schedule& schedule : schedules) {
    backlog_.push_back({schedule.encode(), schedule.type});
  }
  bool pushed = false;
  while (!backlog_.empty() && schedule_.push(backlog_.front().bytes)) {
    const wire::ScheduleType type = backlog_.front().type;
    backlog_.pop_front();
    if (type == wire::ScheduleType::kEvict) coordinator_.eviction_published(schedule_.written());
    if (type == wire::ScheduleType::kRemoveProcessSet) {
      coordinator_.removal_published(schedule_.written());
    }
    if (type == wire::ScheduleType::kShutdown) job_.arena.end_position().store(schedule_.written());
    pushed = true;
  }
  if (!pushed) return;
  for (int rank = 1; rank < job_.size; ++rank) job_.arena.doorbell(rank).ring(Urgency::kNormal);
  job_.wake_bridge();
}

bool Coordination::flush(const DriveLock& lock) {
  if (backlog_.empty()) return false;
  const std::size_t before = backlog_.size();
  publish(lock, {});
  return backlog_.size() != before;
}

void Coordination::check_stalls(const DriveLock& lock, Nanos now) {
  job_.arena.stall_checks().fetch_add(1, std::memory_order_relaxed);
  job_.wake_bridge();
  const StallVerdict verdict = stalls_.check(coordinator_, now);
  if (verdict.tensors == 0) status_.stall_over(JobStatus::StallCause::kRanks);
  std::vector<wire::Schedule> queries;
  for (const int rank : verdict.ask_stacks_of) {
    wire::Schedule query;
    query.type = wire::ScheduleType::kStackQuery;
    query.rank = rank;
    query.question = verdict.question;
    queries.push_back(std::move(query));
  }
  publish(lock, queries);
  if (!verdict.report.empty()) {
    if (timeline_.active()) timeline_.instant("STALL", now);
    recorder_.stall(verdict.report);
    status_.stalled(JobStatus::StallCause::kRanks, verdict.report, verdict.tensors, now);
    if (verdict.shut_down) {
      HVD_LOG_RANK(kError, job_.rank) << verdict.report;
      announce_end(lock, "a tensor was waited for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
    } else {
      HVD_LOG_RANK(kWarning, job_.rank) << verdict.report;
    }
  }
}

// ---- reports of Coordinator ---------------------------------------------------------------------

void Coordination::on_first_ready(const TensorEntry& entry, Nanos time) {
  if (!timeline_.active()) return;
  for_each_row(entry.description, [&](const std::string& row) {
    timeline_.negotiate_start(row, entry.description.kind, time);
  });
}

void Coordination::on_rank_ready(const TensorEntry& entry, int rank, Nanos time) {
  if (recording_.records_arrivals()) recorder_.announced(entry, rank, time);
  step_watch_.announced(entry, rank, time);
  if (!timeline_.active()) return;
  for_each_row(entry.description,
               [&](const std::string& row) { timeline_.rank_ready(row, rank, time); });
}

void Coordination::on_all_ready(const TensorEntry& entry, Nanos time) {
  step_watch_.complete(entry);
  if (!timeline_.active()) return;
  for_each_row(entry.description,
               [&](const std::string& row) { timeline_.negotiate_end(row, time); });
}

/// A rank learns from the count of arrivals that it completes a round, so ranks that have joined
/// must count as arrived.
void Coordination::on_absent(const TensorEntry& entry, std::size_t ranks) {
  if (entry.slot == wire::kNoSlot || job_.session.across_hosts())
    return;  // only the set of all ranks has absent ones
  job_.arena.slot_round(entry.slot)
      .announce(static_cast<std::uint32_t>(entry.members), static_cast<std::uint32_t>(ranks));
}

}  // namespace hvdtune
