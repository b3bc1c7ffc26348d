#include "engine/schedule/gpu_batches.h"

#include <chrono>
#include <thread>
#include <utility>

#include "engine/operation/timeline_rows.h"

namespace hvdtune {
namespace {

/// NCCL may notice the death of a rank before the watch, which knows the reason.
constexpr Nanos kWatchIsFaster = 500 * kMillisecond;
constexpr Nanos kEndPatience = 30 * kSecond;

void wait_for_cause(const Arena& arena) {
  const Nanos deadline = monotonic_now() + kWatchIsFaster;
  while (!arena.aborted() && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

GpuBatches::GpuBatches(const Job& job, Gpus& gpus, Submissions& submissions,
                       RecordingControl& recording, JobStatus& status, StallReports& reports,
                       BlockedCallers& callers)
    : job_(job),
      gpus_(gpus),
      submissions_(submissions),
      recorder_(recording.recorder()),
      timeline_(recording.timeline()),
      status_(status),
      reports_(reports),
      callers_(callers) {}

std::optional<std::string> GpuBatches::why_over() const {
  if (!job_.arena.aborted()) return {};
  return job_.arena.abort_status().text;
}

void GpuBatches::watch_gpu() {
  const auto fail = [this](const std::string& why) {
    wait_for_cause(job_.arena);
    if (!job_.arena.aborted())
      job_.arena.abort("rank " + std::to_string(job_.rank) + " failed: " + why);
  };
  completions_.emplace(
      DeviceCompletions::Hooks{
          [this] { job_.doorbell.ring(Urgency::kUrgent); }, [this] { return why_over(); }, fail,
          [this](const DeviceBatch& batch, Nanos waited) {
            reports_.slow_gpu(batch.operations.front()->request.name, batch.tensors, waited);
          },
          [this] { executor_->abort(); }, [this] { reports_.gpu_done(); }},
      reports_.limits().patience());
}

bool GpuBatches::launch(const DriveLock& lock, const wire::Schedule& schedule,
                        const std::vector<OperationPtr>& batch, std::uint64_t tensors,
                        Communicator& host) {
  if (!executor_) {
    executor_.emplace(gpus_, submissions_.sets(), job_.rank, [this] { return why_over(); });
  }
  const wire::RuntimeSettings& settings = submissions_.applied(lock);
  const bool recorded = recorder_.active();
  std::unique_ptr<DeviceBatch> launched;
  executor_->set_bypass_limit(settings.nccl_bypass_limit);
  executor_->use_streams(settings.nccl_streams);
  try {
    if (!executor_->takes(batch, host)) return false;
    launched = executor_->launch(schedule, batch, host, recorded || timeline_.active());
  } catch (const Error&) {
    wait_for_cause(job_.arena);
    throw;
  }
  if (!can_bypass_nccl_) can_bypass_nccl_ = executor_->can_bypass();
  if (executor_->uses_nccl()) uses_nccl_ = true;
  if (!completions_) watch_gpu();
  launched->tensors = tensors;
  launched->recorded = recorded;
  launched->epoch = settings.epoch;
  for (const OperationPtr& operation : batch) {
    if (operation->on_device) operation->on_device->launched = true;
  }
  if (gpus_.options().async_completion) announce_done(lock, *launched);
  completions_->add(std::move(launched));
  return true;
}

/// The operations are done for their submitters, which let their streams wait for the GPU.
void GpuBatches::announce_done(const DriveLock& lock, DeviceBatch& batch) {
  batch.announced_done = true;
  for (const OperationPtr& operation : batch.operations) {
    if (operation->on_device) operation->on_device->end = batch.end;
  }
  submissions_.finish(lock, batch.operations);
}

void GpuBatches::finish_taken(const DriveLock& lock) {
  for (const auto& batch : completions_->take()) finish_one(lock, *batch);
  callers_.wake_others();
}

void GpuBatches::finish_one(const DriveLock& lock, DeviceBatch& batch) {
  std::optional<DeviceTimes> times;
  if (batch.status.ok()) {
    try {
      times = times_of(batch);
    } catch (const Error& error) {
      batch.status = error.status();
    }
  }
  const bool ok = batch.status.ok();
  if (timeline_.active()) trace(batch, times.value_or(DeviceTimes{}));
  status_.executed(batch.tensors);
  if (batch.recorded && recorder_.active()) {
    Executor::BatchTimes told;
    told.begin = batch.launched;
    if (times && batch.packed) told.phases = {times->packed, times->unpacking};
    const std::vector<int>& members = submissions_.sets().ranks(batch.schedule.process_set);
    recorder_.executed(batch.schedule, batch.operations, members, told, batch.epoch, ok);
  }
  if (batch.announced_done) return submissions_.forget(lock, batch.operations);
  for (const OperationPtr& operation : batch.operations) operation->status = batch.status;
  submissions_.finish_and_forget(lock, batch.operations);
}

void GpuBatches::finish_all(const DriveLock& lock) {
  if (!completions_) return;
  completions_->wait_until_idle(kForever);
  finish_done(lock);
}

void GpuBatches::remove_set(const DriveLock& /*held*/, std::uint32_t set) {
  if (executor_) executor_->remove_set(set);
}

void GpuBatches::trace(const DeviceBatch& batch, const DeviceTimes& times) {
  const bool ok = batch.status.ok();
  for (const OperationPtr& operation : batch.operations) {
    const wire::Request& request = operation->request;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const std::string row = timeline_row(request, i);
      const auto activity = [&](const char* label, Nanos from, Nanos to) {
        timeline_.activity_start(row, label, from);
        timeline_.activity_end(row, to);
      };
      const bool connected = batch.connecting != 0;
      timeline_.op_start(row, wire::operation_label(request),
                         connected ? batch.connecting : batch.launched);
      if (connected) activity("INIT_NCCL", batch.connecting, batch.connected);
      if (ok) {
        activity("QUEUE", batch.launched, times.begin);
        if (batch.packed) activity("MEMCPY_IN_FUSION_BUFFER", times.begin, times.packed);
        activity(batch.exchange->activity(request.kind), times.packed, times.unpacking);
        if (batch.unpacking) activity("MEMCPY_OUT_FUSION_BUFFER", times.unpacking, times.end);
      }
      const wire::TensorSpec& spec = request.tensors[i];
      timeline_.op_end(row, batch.ended, spec.dtype, wire::shape_text(spec.shape), spec.bytes(),
                       batch.schedule.batch, ok);
    }
  }
}

void GpuBatches::stop(const DriveLock& lock) {
  if (completions_) {
    completions_->wait_until_idle(monotonic_now() + kEndPatience);
    completions_->stop();  // before the last check: a caller may wait for a batch that is given up
    finish_done(lock);
    completions_.reset();
  }
  // Without abort(), the communicators would say goodbye to members that may be gone.
  if (executor_ && job_.arena.aborted()) executor_->abort();
  executor_.reset();
}

}  // namespace hvdtune
