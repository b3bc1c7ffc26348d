#include "engine/schedule/schedule_reader.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/cpu/affinity.h"
#include "base/log.h"
#include "engine/operation/timeline_rows.h"

namespace hvdtune {
namespace {

/// This rank's helpers.
HelperOptions chosen_helpers(int wanted, const Job& job) {
  HelperOptions helpers;
  const Arena& arena = job.arena;
  if (!job.in_shared_memory || arena.local_ranks() == 1) return helpers;
  helpers.threads =
      wanted >= 0 ? std::min(wanted, kMostHelpers)
                  : fitting_helpers(arena.local_ranks(), arena.cpus(), this_cpu_share().usable);
  // If the user wants more threads than there are CPUs, polling would keep others from running.
  const bool crowded = arena.local_ranks() * (1 + helpers.threads) > arena.cpus();
  helpers.patience = {job.patience.awake, crowded};
  return helpers;
}

}  // namespace

ScheduleReader::ScheduleReader(const Needs& needs, Options options)
    : job_(needs.job),
      submissions_(needs.submissions),
      recording_(needs.recording),
      gpu_batches_(needs.gpu_batches),
      status_(needs.status),
      reports_(needs.reports),
      stack_query_(needs.stack_query),
      callers_(needs.callers),
      steps_(needs.steps),
      options_(std::move(options)),
      schedule_(job_.arena.schedule()),
      helpers_(std::make_shared<HelperPool>(chosen_helpers(options_.reduction_threads, job_))),
      staging_(needs.gpus),
      executor_(submissions_.sets(), job_.rank, recording_.timeline(), *helpers_) {
  if (helpers_->helpers() > 0) {
    HVD_LOG_RANK(kInfo, job_.rank) << helpers_->helpers() << " reduction threads help this rank";
  }
  executor_.tune(tuning_of(submissions_.settings()));
  executor_.stage_with(staging_);
  if (!job_.session.heap) return;
  for (std::uint32_t set = 0; set < submissions_.sets().numbers(); ++set) {
    executor_.add_registered_set(set, make_registered(set));
  }
}

bool ScheduleReader::read(const DriveLock& lock) {
  bool worked = false;
  std::string bytes;
  std::uint64_t next = 0;
  while (!submissions_.over() && schedule_.peek(job_.rank, bytes, next)) {
    worked = true;
    const wire::Schedule schedule = wire::Schedule::decode(bytes);
    switch (schedule.type) {
      case wire::ScheduleType::kBatch:
        execute(lock, schedule);
        break;
      case wire::ScheduleType::kReject:
        reject(lock, schedule);
        break;
      case wire::ScheduleType::kEvict:
        submissions_.evict(lock, schedule.entries.front().slot);
        break;
      case wire::ScheduleType::kSettings:
        change_settings(lock, schedule.settings);
        break;
      case wire::ScheduleType::kStackQuery:
        if (schedule.rank == job_.rank) stack_query_.start(schedule.question);
        break;
      case wire::ScheduleType::kInterrupt:
        interrupt_ = schedule.interrupt;
        break;
      case wire::ScheduleType::kTimeline:
        recording_.apply(lock, schedule);
        break;
      case wire::ScheduleType::kShutdown:
        // This entry may arrive before the word with its end position. Without that word, a rank
        // that leaves now would count as dead.
        job_.arena.end_position().store(next);
        end_job(lock, schedule.status);
        break;
      case wire::ScheduleType::kAddProcessSet:
        add_set(lock, schedule);
        break;
      case wire::ScheduleType::kRemoveProcessSet:
        remove_set(lock, schedule);
        break;
      case wire::ScheduleType::kJoined:
        submissions_.end_join(lock);
        submissions_.finish_change(lock, schedule.entries.front(), schedule.rank);
        break;
    }
    schedule_.advance(job_.rank, next);
    if (job_.arena.aborted()) break;
  }
  if (worked) callers_.wake_others();
  return worked;
}

void ScheduleReader::execute(const DriveLock& lock, const wire::Schedule& schedule) {
  std::vector<OperationPtr> batch;
  const std::uint64_t tensors = submissions_.find_batch(lock, schedule, batch);
  if (batch.empty()) return status_.executed(tensors);  // a process set that this rank is not in
  // Before its operations are done, so that callers that wait for them see it.
  if (interrupt_ != interrupted_.load(std::memory_order_relaxed)) interrupted_.store(interrupt_);
  Recorder& recorder = recording_.recorder();
  const bool recorded = recorder.active();
  bool ok = true;
  try {
    if (!batch.front()->request.on_host() &&
        gpu_batches_.launch(lock, schedule, batch, tensors,
                            executor_.communicator(schedule.process_set))) {
      return;
    }
    executor_.run(batch, schedule.batch, schedule.registered, recorded);
  } catch (const Error& error) {
    // The other members wait in the collective and cannot go on without this rank.
    if (job_.session.mesh && job_.session.mesh->aborted()) {
      // The connections say which rank is gone, not which rank noticed.
      job_.arena.abort(job_.session.mesh->abort_status().text);
    } else if (!job_.arena.aborted()) {
      job_.arena.abort("rank " + std::to_string(job_.rank) + " failed in " +
                       batch.front()->request.name + ": " + error.what());
    }
    ok = false;
  } catch (const std::bad_alloc&) {
    job_.arena.abort("rank " + std::to_string(job_.rank) + " is out of memory in " +
                     batch.front()->request.name);
    ok = false;
  }
  if (!ok) {
    for (const OperationPtr& operation : batch) operation->status = job_.arena.abort_status();
  }
  status_.executed(tensors);
  // Before the operations are done: afterwards their submitters own them again.
  if (recorded) {
    recorder.executed(schedule, batch, submissions_.sets().ranks(schedule.process_set),
                      executor_.times(), submissions_.applied(lock).epoch, ok);
  }
  submissions_.finish_and_forget(lock, batch);
}

void ScheduleReader::reject(const DriveLock& lock, const wire::Schedule& schedule) {
  const OperationPtr operation =
      submissions_.find_entry(lock, schedule.process_set, schedule.entries.front());
  if (!operation) return;
  Timeline& timeline = recording_.timeline();
  if (timeline.active()) {
    const Nanos now = monotonic_now();
    for_each_row(operation->request, [&](const std::string& row) {
      timeline.op_start(row, "ERROR", now);
      timeline.op_end(row, now, DType::kUint8, "", 0, 0, false);
    });
  }
  if (recording_.recorder().active()) {
    recording_.recorder().refused(operation->request, schedule.status.text);
  }
  operation->status = schedule.status;
  submissions_.finish(lock, {operation});
}

void ScheduleReader::end_job(const DriveLock& lock, const Status& status) {
  if (status.kind != ErrorKind::kShutdown) {
    recording_.recorder().capture().mark(capture::MarkKind::kError, 1, status.text);
  }
  submissions_.end(lock, status);
  steps_.close();
}

void ScheduleReader::stop(const DriveLock& lock) {
  helpers_->stop();
  gpu_batches_.stop(lock);
}

}  // namespace hvdtune
