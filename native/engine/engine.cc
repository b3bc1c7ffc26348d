#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/threads/signals_blocked.h"
#include "engine/job/blocked.h"
#include "engine/parts.h"

namespace hvdtune {
namespace {

// Operations that all ranks wait for have the same name on all of them. Additions and removals
// share one name: if ranks request them in different orders, they get an error instead of waiting
// for each other.
constexpr const char* kJoinName = "join.noname";
constexpr const char* kChangeName = "process_set.change";

// How long a submitter with a callback waits: as long as a direct round.
constexpr Nanos kWaitForOthers = 500 * kMicrosecond;

Submission change_of(OpKind kind, const char* name, std::vector<std::int32_t> ranks) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = name;
  submission.request.cacheable = false;
  submission.request.ranks = std::move(ranks);
  return submission;
}

/// Tells the others why this rank cannot start; otherwise they would take it for dead. If a data
/// plane has refused, all ranks already know the reason.
void abort_start(const Job& job, const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own != nullptr && own->kind() == ErrorKind::kInvalidArgument) return;
  const std::string why = own != nullptr ? own->what() : "it was interrupted";
  job.arena.abort("rank " + std::to_string(job.rank) + " cannot start: " + why);
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

Engine::Engine(EngineOptions options) : parts_(std::make_unique<Parts>(std::move(options))) {
  Parts& parts = *parts_;
  const bool recorded = !parts.options.timeline.empty();
  {
    const SignalsBlocked signals;
    parts.recording.recorder().settings(parts.options.settings);
    if (parts.coordination) {
      const DriveLock lock(parts.drive_mutex);
      const auto first = parts.recording.decide_first(lock, parts.options.timeline,
                                                      parts.options.timeline_mark_cycles);
      if (first) parts.coordination->publish(lock, {*first});
    }
    parts.watch.start();
  }
  try {
    // After the watch has started: data planes other than hvdtune's own wait for all ranks here.
    parts.reader.connect();
    parts.recording.await_decision(recorded);
  } catch (const std::exception& error) {
    abort_start(parts.job, error);
    parts.watch.disconnect();
    throw;
  }
  const SignalsBlocked signals;
  // Before anything can be submitted here, and before rank 0 reads announcements, so that a
  // recording that begins with the job misses nothing.
  if (parts.coordination || recorded) parts.reader.read(DriveLock(parts.drive_mutex));
  parts.drive.start(parts.options.affinity);
}

Engine::~Engine() {
  shutdown();
  parts_->watch.disconnect();  // while the parts that it calls still exist
}

bool Engine::end_job_by(Nanos deadline) {
  Parts& parts = *parts_;
  const auto over = [&parts] { return parts.submissions.over(); };
  if (!over() && !parts.end_announced.exchange(true)) {
    parts.submissions.announce(wire::encode_announce_shutdown());
    parts.job.coordinator_bell.ring(Urgency::kUrgent);
  }
  if (!over()) parts.drive.until(over, deadline);
  return over();
}

void Engine::abort(const std::string& why) {
  parts_->job.arena.abort("rank " + std::to_string(parts_->job.rank) + " ended the job: " + why);
}

void Engine::cancel(const std::string& why) { parts_->job.arena.abort(why); }

void Engine::shutdown() {
  Parts& parts = *parts_;
  end_job_by(kForever);
  if (!parts.drive.stop()) return;
  // A caller may not have noticed the end yet.
  parts.reader.stop(DriveLock(parts.drive_mutex));
  parts.completions.tell();
  // A rank that waits for this one in an operation must learn the cause, not that this rank has
  // left.
  const Job& job = parts.job;
  if (job.session.mesh && job.arena.aborted()) {
    job.session.mesh->abort(job.arena.abort_status().text);
  }
  if (parts.answers) parts.answers->stop();
  parts.watch.stop();
  parts.recording.stop();
  parts.steps().close();
  if (job.bridge != nullptr) job.bridge->stop();
}

void Engine::abandon() {
  if (parts_->answers) parts_->answers->abandon();
  const Job& job = parts_->job;
  for (const Fd& socket : job.session.sockets) {
    if (socket.valid()) close(socket.get());
  }
  if (job.session.mesh) job.session.mesh->abandon();
  if (job.bridge != nullptr) job.bridge->abandon();
}

// ---- operations ---------------------------------------------------------------------------------

std::int64_t Engine::submit(const TensorOperation& wanted) {
  return parts_->submissions.submit(wanted);
}

std::int64_t Engine::submit(Submission submission) {
  std::shared_ptr<OnDevice> on_device = parts_->accepted(submission);
  return parts_->submissions.submit(std::move(submission), std::move(on_device));
}

void Engine::submit(Submission submission, OnDone on_done) {
  std::shared_ptr<OnDevice> on_device = parts_->accepted(submission);
  parts_->submissions.submit(std::move(submission), std::move(on_device), std::move(on_done));
}

void Engine::check(const wire::Request& request) { parts_->submissions.check(request); }

KnownOperation Engine::known(std::int64_t handle) { return parts_->submissions.known(handle); }

void Engine::submit_again(std::span<const KnownOperation> operations,
                          std::span<const TensorMemory> memory,
                          std::vector<std::int64_t>& handles) {
  parts_->submissions.submit_again(operations, memory, handles);
}

std::int64_t Engine::submit_blocking(Submission submission) {
  if (!submission.request.on_host()) return submit(std::move(submission));
  return parts_->submissions.submit_blocking(std::move(submission));
}

std::int64_t Engine::submit_blocking(const TensorOperation& wanted) {
  return parts_->submissions.submit_blocking(wanted);
}

void Engine::submit_blocking(Submission submission, OnDone on_done) {
  if (!submission.request.on_host()) return submit(std::move(submission), std::move(on_done));
  Parts& parts = *parts_;
  const OperationPtr open =
      parts.submissions.submit_blocking(std::move(submission), std::move(on_done));
  if (!open) return;
  parts.drive.until([&open] { return open->done.load(std::memory_order_acquire); },
                    monotonic_now() + kWaitForOthers);
}

Engine::HeldRings::HeldRings(Engine& engine)
    : engine_(engine), active_(engine.parts_->submissions.hold_rings()) {}

Engine::HeldRings::~HeldRings() {
  if (active_) engine_.parts_->submissions.release_rings(then_waits_);
}

std::int64_t Engine::join(int device) {
  if (device >= 0) parts_->gpus.try_use(device);
  return submit(change_of(OpKind::kJoin, kJoinName, {}));
}

std::int64_t Engine::add_process_set(std::vector<std::int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return submit(change_of(OpKind::kAddProcessSet, kChangeName, std::move(ranks)));
}

std::int64_t Engine::remove_process_set(std::uint32_t set) {
  return submit(
      change_of(OpKind::kRemoveProcessSet, kChangeName, {static_cast<std::int32_t>(set)}));
}

std::vector<int> Engine::process_set_ranks(std::uint32_t set) {
  return parts_->submissions.process_set_ranks(set);
}

std::pair<int, int> Engine::place_in_set(std::uint32_t set) {
  return parts_->submissions.place_in_set(set);
}

bool Engine::poll(std::int64_t handle) {
  const OperationPtr operation = parts_->submissions.find(handle);
  if (!operation) {
    throw Error(ErrorKind::kInvalidArgument,
                "handle " + std::to_string(handle) + " was not created or has been cleared");
  }
  return operation->done.load(std::memory_order_acquire);
}

bool Engine::is_done(std::int64_t handle) { return parts_->submissions.is_done(handle); }

bool Engine::wait(std::int64_t handle, Nanos deadline) {
  Parts& parts = *parts_;
  const OperationPtr operation = parts.submissions.find(handle);
  if (!operation) return true;
  const auto done = [&operation] { return operation->done.load(std::memory_order_acquire); };
  if (done()) return true;
  const Job& job = parts.job;
  job.doorbell.blocked_on.store(operation->slot != wire::kNoSlot
                                    ? blocked::on_slot(operation->slot)
                                    : blocked::on_ticket(operation->ticket),
                                std::memory_order_seq_cst);
  if (job.arena.collecting().load(std::memory_order_seq_cst) != 0) {
    job.coordinator_bell.ring(Urgency::kUrgent);
  }
  Recorder& recorder = parts.recording.recorder();
  const bool recorded = recorder.active();
  const bool timed = recorded || job.is_coordinator();  // its status shows the time
  const Nanos began = timed ? monotonic_now() : 0;
  parts.drive.until(done, deadline);
  if (timed) parts.callers.add_time(monotonic_now() - began);
  job.doorbell.blocked_on.store(blocked::kNothing, std::memory_order_seq_cst);
  if (recorded) recorder.waited(*operation, began);
  return done();
}

OperationPtr Engine::take(std::int64_t handle) { return parts_->submissions.take(handle); }

bool Engine::retire(std::int64_t handle) { return parts_->submissions.retire(handle); }

void Engine::retire(std::span<std::int64_t> handles) { parts_->submissions.retire(handles); }

std::shared_ptr<SharedBlock> Engine::allocate_shared(std::size_t bytes) {
  return parts_->submissions.allocate_shared(bytes);
}

// ---- settings -----------------------------------------------------------------------------------

std::uint64_t Engine::change_settings(const SettingsChange& change) {
  if (!parts_->coordination) {
    throw Error(ErrorKind::kInvalidArgument, "settings are changed on rank 0 only");
  }
  const std::uint64_t epoch =
      parts_->coordination->change_settings(DriveLock(parts_->drive_mutex), change);
  parts_->drive.wake_thread();
  return epoch;
}

void Engine::interrupt(std::uint64_t number) {
  if (!parts_->coordination) return;
  {
    const DriveLock lock(parts_->drive_mutex);
    parts_->recording.watch_for_good(lock);
    parts_->coordination->interrupt(lock, number);
  }
  parts_->drive.wake_thread();
}

std::uint64_t Engine::interrupted() const { return parts_->reader.interrupted(); }

wire::RuntimeSettings Engine::settings() { return parts_->submissions.settings(); }

void Engine::stop_watching_steps() { parts_->recording.stop_watching_steps(); }

StepLog& Engine::steps() { return parts_->steps(); }

// ---- recordings ---------------------------------------------------------------------------------

std::uint64_t Engine::ask_timeline(const wire::TimelineOrder& order) {
  return parts_->recording.ask(order);
}

bool Engine::await_timeline(std::uint64_t number, Nanos deadline) {
  Parts& parts = *parts_;
  const auto answered = [&parts, number] {
    return parts.submissions.over() || parts.recording.answered(number);
  };
  if (!answered()) parts.drive.until(answered, deadline);
  if (!answered()) return false;
  parts.recording.join_ended();
  return true;
}

std::string Engine::timeline_problem() { return parts_->recording.problem(); }

bool Engine::is_recorded() { return parts_->recording.is_recorded(); }

std::string Engine::recorded_file() { return parts_->recording.file(); }

bool Engine::takes_records() const { return parts_->recording.recorder().active(); }

void Engine::mark_step() { parts_->recording.mark_step(); }

std::int64_t Engine::steps_ended() { return parts_->recording.recorder().capture().steps(); }

void Engine::mark(capture::MarkKind kind, std::int64_t value, std::string_view text) {
  parts_->recording.recorder().capture().mark(kind, value, text);
}

void Engine::counter(std::string_view name, double value) {
  parts_->recording.recorder().capture().counter(name, value);
}

bool Engine::await_recordings(Nanos deadline) {
  return parts_->recording.await_recordings(deadline);
}

const std::vector<std::string>& Engine::recorded() const { return parts_->recording.recorded(); }

// ---- questions ----------------------------------------------------------------------------------

void Engine::set_stack_source(std::function<std::string()> source) {
  parts_->watch.set_stack_source(std::move(source));
}

std::string Engine::status() { return parts_->answers ? parts_->answers->status() : "{}"; }

void Engine::note(const std::string& key, const std::string& text) {
  parts_->status.note(key, text);
}

void Engine::serve(const std::string& name, std::string identity,
                   std::function<std::string(std::string_view)> command) {
  if (parts_->answers) parts_->answers->serve(name, std::move(identity), std::move(command));
}

void Engine::start_clock() { parts_->watch.start_clock(); }

bool Engine::stop_clock(Nanos deadline) { return parts_->watch.stop_clock(deadline); }

std::vector<ClockReading> Engine::clock_readings(std::size_t skip) const {
  return parts_->watch.clock_readings(skip);
}

const std::vector<PeerInfo>& Engine::peers() const { return parts_->job.session.peers; }

std::vector<int> Engine::hosts() const { return parts_->job.hosts(); }

int Engine::host_cpus() const { return parts_->job.arena.cpus(); }

Status Engine::state() { return parts_->submissions.state(); }

Gpus& Engine::gpus() { return parts_->gpus; }

bool Engine::can_bypass_nccl() const { return parts_->gpu_batches.can_bypass_nccl(); }

bool Engine::uses_nccl() const { return parts_->gpu_batches.uses_nccl(); }

}  // namespace hvdtune
