// Batches of tensors on GPUs: given to NCCL when it is their turn in the schedule, finished when
// the GPU is done. In between nobody waits but the thread of DeviceCompletions. The caller of
// everything here holds drive_mutex_.
#include <thread>

#include "base/log.h"
#include "engine/engine.h"

namespace hvdtune {
namespace {

/// NCCL may notice the death of a rank before the watch, which knows what has happened.
constexpr Nanos kWatchIsFaster = 500 * kMillisecond;
constexpr Nanos kEndPatience = 30 * kSecond;

void wait_for_cause(const Arena& arena) {
  const Nanos deadline = monotonic_now() + kWatchIsFaster;
  while (!arena.aborted() && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::optional<std::string> Engine::why_over() const {
  if (!arena_.aborted()) return {};
  return arena_.abort_status().text;
}

void Engine::watch_gpu() {
  const auto fail = [this](const std::string& why) {
    wait_for_cause(arena_);
    if (!arena_.aborted()) arena_.abort("rank " + std::to_string(rank_) + " failed: " + why);
  };
  completions_.emplace(
      DeviceCompletions::Hooks{
          [this] { doorbell_.ring(Urgency::kUrgent); }, [this] { return why_over(); }, fail,
          [this](const DeviceBatch& batch, Nanos waited) { on_slow_gpu(batch, waited); },
          [this] { device_executor_->abort(); }},
      options_.stall.enabled ? options_.stall.warning : 0);
}

/// On the watch's thread. Which rank it waits for a GPU does not tell.
void Engine::on_slow_gpu(const DeviceBatch& batch, Nanos waited) {
  const std::string& name = batch.operations.front()->request.name;
  const std::string report = "rank " + std::to_string(rank_) + ": its GPU has been working on " +
                             name + " for " + std::to_string(waited / kSecond) +
                             " s; most likely it waits for the GPU of another rank, which is "
                             "stopped or busy";
  record_stall(report);
  status_.stalled(report, batch.tensors, monotonic_now());
  HVD_LOG_RANK(kWarning, rank_) << report;
  const Nanos limit = options_.stall.shutdown;
  if (limit < options_.stall.warning || waited < limit) return;
  arena_.abort("Horovod has been shut down: the GPU of rank " + std::to_string(rank_) +
               " was not done with " + name +
               " for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

/// Hands a batch to the GPU. False: it must be executed on the host, as on all other members.
bool Engine::launch(const wire::Schedule& schedule, const std::vector<OperationPtr>& batch,
                    std::uint64_t tensors) {
  if (!device_executor_) {
    device_executor_.emplace(gpus_, sets_, rank_, [this] { return why_over(); });
  }
  Communicator& host = executor_.communicator(schedule.process_set);
  const bool recorded = recorder_.active();
  std::unique_ptr<DeviceBatch> launched;
  device_executor_->set_bypass_limit(applied_.nccl_bypass_limit);
  device_executor_->use_streams(applied_.nccl_streams);
  try {
    if (!device_executor_->takes(batch, host)) return false;
    launched = device_executor_->launch(schedule, batch, host, recorded || timeline_.active());
  } catch (const Error&) {
    wait_for_cause(arena_);
    throw;
  }
  if (!can_bypass_nccl_) can_bypass_nccl_ = device_executor_->can_bypass();
  if (device_executor_->uses_nccl()) uses_nccl_ = true;
  if (!completions_) watch_gpu();
  launched->tensors = tensors;
  launched->recorded = recorded;
  launched->epoch = applied_.epoch;
  for (const OperationPtr& operation : batch) {
    if (operation->on_device) operation->on_device->launched = true;
  }
  if (gpus_.options().async_completion) announce_done(*launched);
  completions_->add(std::move(launched));
  return true;
}

/// The operations are done for their submitters, who let their streams wait for the GPU.
void Engine::announce_done(DeviceBatch& batch) {
  batch.announced_done = true;
  const std::lock_guard lock(table_mutex_);
  for (const OperationPtr& operation : batch.operations) {
    if (operation->on_device) operation->on_device->end = batch.end;
    table_.finish(operation, true);
    operation->done.store(true, std::memory_order_release);
  }
}

/// What GPUs have done since the last time.
bool Engine::finish_launched() {
  if (!completions_->any_done()) return false;
  for (const auto& batch : completions_->take()) finish_one(*batch);
  wake_other_callers();
  return true;
}

void Engine::finish_one(DeviceBatch& batch) {
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
    const std::vector<int>& members = sets_.ranks(batch.schedule.process_set);
    recorder_.executed(batch.schedule, batch.operations, members, told, batch.epoch, ok);
  }
  const std::lock_guard lock(table_mutex_);
  for (const OperationPtr& operation : batch.operations) {
    if (batch.announced_done) break;
    operation->status = batch.status;
    table_.finish(operation, ok);
    operation->done.store(true, std::memory_order_release);
  }
  batch.operations.clear();  // under the lock, as where batches are executed
}

/// Waits for what GPUs work on.
void Engine::finish_all_launched() {
  if (!completions_) return;
  completions_->wait_until_idle(kForever);
  finish_launched();
}

void Engine::trace(const DeviceBatch& batch, const DeviceTimes& times) {
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

/// At the end of the job.
void Engine::stop_gpus() {
  if (completions_) {
    completions_->wait_until_idle(monotonic_now() + kEndPatience);
    completions_->stop();  // before the last look: somebody may wait for what is given up
    finish_launched();
    completions_.reset();
  }
  // What is not aborted says goodbye to the other members, who may have gone.
  if (device_executor_ && arena_.aborted()) device_executor_->abort();
  device_executor_.reset();
}

}  // namespace hvdtune
