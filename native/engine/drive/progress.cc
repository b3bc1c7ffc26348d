// What progress consists of: the half of Engine that reads, coordinates and executes. All of it
// runs under drive_mutex_.
#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"

namespace hvdtune {
namespace {

/// Calls visit(row) for the timeline row of each tensor of a request.
template <typename Visit>
void for_each_row(const wire::Request& request, Visit&& visit) {
  const std::size_t rows = std::max<std::size_t>(request.tensors.size(), 1);
  for (std::size_t i = 0; i < rows; ++i) visit(timeline_row(request, i));
}

/// What a rank that has joined contributes to the others' allreduce; nobody takes the result.
OperationPtr zeros_for(const wire::Request& request) {
  auto operation = std::make_shared<Operation>();
  operation->request = request;
  for (const wire::TensorSpec& tensor : request.tensors) {
    OwnedBuffer zeros(static_cast<std::size_t>(tensor.bytes()), tensor.shape);
    std::memset(zeros.data(), 0, zeros.bytes());
    operation->memory.push_back({zeros.data(), zeros.data()});
    operation->outputs.push_back(std::move(zeros));
  }
  return operation;
}

}  // namespace

/// Nothing may escape: on the engine's own thread it would end the process without a word.
bool Engine::progress() noexcept {
  try {
    return make_progress();
  } catch (const std::exception& problem) {
    arena_.abort("rank " + std::to_string(rank_) + " cannot go on: " + problem.what());
    return false;
  }
}

bool Engine::make_progress() {
  const bool finished = completions_ && finish_launched();
  if (over_) return finished;
  if (arena_.aborted()) {
    end_job(arena_.abort_status());
    return true;
  }
  bool worked = flush_backlogs() || finished;
  // Nobody reads beyond the end.
  if (coordinator_ && arena_.ended().load() == 0) worked |= coordinate();
  worked |= read_schedule();
  return worked;
}

/// Sends what found its ring full, and a stack that was asked for.
bool Engine::flush_backlogs() {
  bool sent = false;
  {
    const std::lock_guard lock(table_mutex_);
    if (const auto stack = stack_query_.take()) {
      push_announcement(wire::encode_announce_stack(stack->question, stack->text));
      sent = true;
    }
    while (!announce_backlog_.empty() && my_announcements_.push(announce_backlog_.front())) {
      announce_backlog_.pop_front();
      sent = true;
    }
  }
  if (sent) coordinator_bell_.ring(Urgency::kUrgent);
  if (!schedule_backlog_.empty()) {
    const std::size_t before = schedule_backlog_.size();
    publish({});
    sent |= schedule_backlog_.size() != before;
  }
  return sent;
}

// ---- the coordinator's side ---------------------------------------------------------------------

bool Engine::coordinate() {
  looks_.fetch_add(1);
  if (recording_failed_.load(std::memory_order_relaxed)) {
    recording_failed_.store(false, std::memory_order_relaxed);
    watch_traffic();
  }
  // A rank that passed an eviction had announced before; what it announced is read below.
  const std::uint64_t passed_by_all = schedule_.slowest();
  const bool heard = read_announcements();
  for (const wire::Slot slot : coordinator_->release_evicted(passed_by_all)) {
    arena_.slot_round(slot).reset();
    if (bridge_) bridge_->release_slot(slot);
  }
  for (const std::uint32_t set : coordinator_->release_sets(passed_by_all)) {
    arena_.reset_cells(static_cast<int>(set));
    if (session_.heap) session_.heap->reset_work_cell(static_cast<int>(set));
    if (bridge_) bridge_->release_set(set);
  }
  // Announcements that did not ring because they came before this are read in the next turn.
  arena_.joined().store(static_cast<std::uint32_t>(coordinator_->joined()),
                        std::memory_order_seq_cst);
  const Nanos now = monotonic_now();
  if (now >= stalls_->deadline()) check_stalls(now);
  blocked_on_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    blocked_on_.push_back(arena_.doorbell(rank).blocked_on.load(std::memory_order_seq_cst));
  }
  std::vector<wire::Schedule> schedules;
  coordinator_->schedule(now, blocked_on_, schedules);
  arena_.collecting().store(coordinator_->has_ready() ? 1 : 0, std::memory_order_seq_cst);
  if (!schedules.empty()) {
    if (timeline_.active() && timeline_.mark_cycles()) timeline_.cycle_start(now);
    if (recorder_.active() && cycles_marked_) mark(capture::MarkKind::kCycle, 0, {});
    publish(schedules);
    watch_steps();
  }
  status_.waiting(coordinator_->open() - coordinator_->ready(), coordinator_->ready(),
                  coordinator_->scheduled());
  looks_.fetch_add(1);
  return heard || !schedules.empty();
}

bool Engine::read_announcements() {
  bool heard = false;
  const Nanos now = monotonic_now();
  for (int rank = 0; rank < size_; ++rank) {
    heard |= announcements_[static_cast<std::size_t>(rank)].consume(
        [&](std::string_view bytes) { hear(rank, bytes, now); });
  }
  return heard;
}

void Engine::hear(int rank, std::string_view bytes, Nanos now) {
  const bool other_clock = other_clock_[static_cast<std::size_t>(rank)];
  if (wire::is_announce_slot(bytes)) {
    wire::AnnouncedSlot announced = wire::decode_announce_slot(bytes);
    if (other_clock) announced.time = now;
    return coordinator_->announce(rank, announced, now);
  }
  wire::Announce announce = wire::decode_announce(bytes);
  if (other_clock) announce.time = now;
  switch (announce.type) {
    case wire::AnnounceType::kSlot:
    case wire::AnnounceType::kRequest:
      coordinator_->announce(rank, std::move(announce));
      break;
    case wire::AnnounceType::kShutdown:
      announce_end("rank " + std::to_string(rank) +
                   " shut down, or its program ended, while this operation was waiting");
      break;
    case wire::AnnounceType::kStackReply:
      stalls_->stack_of(rank, announce.question, std::move(announce.text));
      break;
    case wire::AnnounceType::kTimeline:
      order_timeline(rank, std::move(announce.timeline));
      break;
  }
}

void Engine::announce_end(const std::string& why) {
  if (arena_.ended().exchange(1) != 0) return;  // several ranks may shut down at once
  wire::Schedule end;
  end.type = wire::ScheduleType::kShutdown;
  end.status = {ErrorKind::kShutdown, "Horovod has been shut down: " + why + "."};
  publish({end});
}

void Engine::publish(const std::vector<wire::Schedule>& schedules) {
  for (const wire::Schedule& schedule : schedules) {
    schedule_backlog_.push_back({schedule.encode(), schedule.type});
  }
  bool pushed = false;
  while (!schedule_backlog_.empty() && schedule_.push(schedule_backlog_.front().bytes)) {
    const wire::ScheduleType type = schedule_backlog_.front().type;
    schedule_backlog_.pop_front();
    if (type == wire::ScheduleType::kEvict) coordinator_->eviction_published(schedule_.written());
    if (type == wire::ScheduleType::kRemoveProcessSet) {
      coordinator_->removal_published(schedule_.written());
    }
    if (type == wire::ScheduleType::kShutdown) arena_.end_position().store(schedule_.written());
    pushed = true;
  }
  if (!pushed) return;
  for (int rank = 1; rank < size_; ++rank) arena_.doorbell(rank).ring(Urgency::kNormal);
  if (bridge_) bridge_->wake();
}

void Engine::check_stalls(Nanos now) {
  arena_.stall_checks().fetch_add(1, std::memory_order_relaxed);
  if (bridge_) bridge_->wake();
  const StallVerdict verdict = stalls_->check(*coordinator_, now);
  if (verdict.tensors == 0) status_.stall_over();
  std::vector<wire::Schedule> queries;
  for (const int rank : verdict.ask_stacks_of) {
    wire::Schedule query;
    query.type = wire::ScheduleType::kStackQuery;
    query.rank = rank;
    query.question = verdict.question;
    queries.push_back(std::move(query));
  }
  publish(queries);
  if (!verdict.report.empty()) {
    if (timeline_.active()) timeline_.instant("STALL", now);
    record_stall(verdict.report);
    status_.stalled(verdict.report, verdict.tensors, now);
    if (verdict.shut_down) {
      HVD_LOG_RANK(kError, rank_) << verdict.report;
      announce_end("a tensor was waited for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
    } else {
      HVD_LOG_RANK(kWarning, rank_) << verdict.report;
    }
  }
}

// ---- every rank's side --------------------------------------------------------------------------

bool Engine::read_schedule() {
  bool worked = false;
  std::string bytes;
  std::uint64_t next = 0;
  while (!over_ && schedule_.peek(rank_, bytes, next)) {
    worked = true;
    const wire::Schedule schedule = wire::Schedule::decode(bytes);
    switch (schedule.type) {
      case wire::ScheduleType::kBatch:
        execute(schedule);
        break;
      case wire::ScheduleType::kReject:
        reject(schedule);
        break;
      case wire::ScheduleType::kEvict:
        evict(schedule.entries.front().slot);
        break;
      case wire::ScheduleType::kSettings: {
        executor_.tune(tuning_of(schedule.settings));
        record_settings(schedule.settings);
        const std::lock_guard lock(table_mutex_);
        applied_ = schedule.settings;
        break;
      }
      case wire::ScheduleType::kStackQuery:
        if (schedule.rank == rank_) stack_query_.start(schedule.question);
        break;
      case wire::ScheduleType::kTimeline:
        apply_timeline(schedule);
        break;
      case wire::ScheduleType::kShutdown:
        // The record may come before the word that tells where it ends: who leaves now leaves
        // rightly.
        arena_.end_position().store(next);
        end_job(schedule.status);
        break;
      case wire::ScheduleType::kAddProcessSet:
        add_set(schedule);
        break;
      case wire::ScheduleType::kRemoveProcessSet:
        remove_set(schedule);
        break;
      case wire::ScheduleType::kJoined:
        end_join(schedule);
        break;
    }
    schedule_.advance(rank_, next);
    if (arena_.aborted()) break;
  }
  if (worked) wake_other_callers();
  return worked;
}

void Engine::execute(const wire::Schedule& schedule) {
  std::vector<OperationPtr> batch;
  std::uint64_t tensors = 0;
  {
    const std::lock_guard lock(table_mutex_);
    for (const wire::BatchEntry& entry : schedule.entries) {
      tensors += entry.run;
      for (std::uint32_t next = 0; next < entry.run; ++next) {
        if (OperationPtr operation = table_.find(schedule.process_set, entry, next)) {
          batch.push_back(std::move(operation));
        } else if (entry.description) {
          batch.push_back(zeros_for(*entry.description));
        }
      }
    }
  }
  if (batch.empty()) return status_.executed(tensors);  // a process set that this rank is not in
  const bool recorded = recorder_.active();
  bool ok = true;
  try {
    if (!batch.front()->request.on_host() && launch(schedule, batch, tensors)) return;
    executor_.run(batch, schedule.batch, schedule.registered, recorded);
  } catch (const Error& error) {
    // The other members wait in the collective: without this rank they cannot go on.
    if (session_.mesh && session_.mesh->aborted()) {
      arena_.abort(session_.mesh->abort_status().text);  // who is gone says more than who noticed
    } else if (!arena_.aborted()) {
      arena_.abort("rank " + std::to_string(rank_) + " failed in " + batch.front()->request.name +
                   ": " + error.what());
    }
    for (const OperationPtr& operation : batch) operation->status = arena_.abort_status();
    ok = false;
  } catch (const std::bad_alloc&) {
    arena_.abort("rank " + std::to_string(rank_) + " is out of memory in " +
                 batch.front()->request.name);
    for (const OperationPtr& operation : batch) operation->status = arena_.abort_status();
    ok = false;
  }
  status_.executed(tensors);
  // Before the operations are done: then they are their submitters' again.
  if (recorded) {
    const std::vector<int>& members = sets_.ranks(schedule.process_set);
    recorder_.executed(schedule, batch, members, executor_.times(), applied_.epoch, ok);
  }
  const std::lock_guard lock(table_mutex_);
  for (std::size_t at = 0; at < batch.size(); ++at) {
    prefetch_end(batch, at);
    table_.finish(batch[at], batch[at]->status.ok());
    batch[at]->done.store(true, std::memory_order_release);
  }
  batch.clear();  // under the lock: only what nobody else holds is used again by retire()
}

void Engine::reject(const wire::Schedule& schedule) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr operation = table_.find(schedule.process_set, schedule.entries.front());
  if (!operation) return;
  if (timeline_.active()) {
    const Nanos now = monotonic_now();
    for_each_row(operation->request, [&](const std::string& row) {
      timeline_.op_start(row, "ERROR", now);
      timeline_.op_end(row, now, DType::kUint8, "", 0, 0, false);
    });
  }
  if (recorder_.active()) recorder_.refused(operation->request, schedule.status.text);
  operation->status = schedule.status;
  table_.finish(operation, false);
  operation->done.store(true, std::memory_order_release);
}

/// The coordinator gives the slot to another tensor once all ranks are past its eviction. What this
/// rank has announced by it and could not send yet must go by its description.
void Engine::evict(wire::Slot slot) {
  const std::lock_guard lock(table_mutex_);
  if (registration_) registration_->evict(slot);
  const OperationPtr pending = table_.evict(slot);
  if (!pending || pending->slot != slot) return;
  if (pending->direct) return leave_direct(pending);
  for (std::string& bytes : announce_backlog_) {
    if (!wire::is_announce_slot(bytes)) continue;
    const wire::Announce announce = wire::decode_announce(bytes);
    if (announce.ticket != pending->ticket) continue;
    bytes = wire::encode_announce_request(pending->request, announce.ticket, announce.time);
    return;
  }
}

/// Everything in flight fails with `status`, and so does everything submitted later.
void Engine::end_job(const Status& status) {
  if (status.kind != ErrorKind::kShutdown) mark(capture::MarkKind::kError, 1, status.text);
  const std::lock_guard lock(table_mutex_);
  ended_ = status;
  for (const OperationPtr& operation : table_.take_all()) {
    // The others may have gone on, and ended the job, before this rank has looked.
    if (operation->direct && direct_is_complete(*operation)) {
      finish_direct(operation);
      continue;
    }
    if (operation->on_device && operation->on_device->launched) continue;  // it ends by itself
    operation->status = status;
    operation->done.store(true, std::memory_order_release);
  }
  over_ = true;
  coordinator_steps().close();
}

void Engine::on_first_ready(const TensorEntry& entry, Nanos time) {
  if (!timeline_.active()) return;
  for_each_row(entry.description, [&](const std::string& row) {
    timeline_.negotiate_start(row, entry.description.kind, time);
  });
}

void Engine::on_rank_ready(const TensorEntry& entry, int rank, Nanos time) {
  if (records_arrivals_ && recorder_.active()) recorder_.announced(entry, rank, time);
  stragglers_.announced(rank, time);
  if (entry.members < static_cast<std::size_t>(size_)) stragglers_.apart(rank, time);
  if (!timeline_.active()) return;
  for_each_row(entry.description,
               [&](const std::string& row) { timeline_.rank_ready(row, rank, time); });
}

void Engine::on_all_ready(const TensorEntry& entry, Nanos time) {
  if (entry.members == static_cast<std::size_t>(size_) && entry.absent.empty()) {
    const Nanos apart = arena_.apart(entry.last_rank).load(std::memory_order_relaxed);
    // A later one came behind the announcement, or is of another clock.
    if (apart != 0 && apart <= entry.last_time) stragglers_.apart(entry.last_rank, apart);
    stragglers_.complete(entry.last_rank, entry.last_time, who_waits_for(entry), entry.times);
  }
  if (!timeline_.active()) return;
  for_each_row(entry.description,
               [&](const std::string& row) { timeline_.negotiate_end(row, time); });
}

}  // namespace hvdtune
