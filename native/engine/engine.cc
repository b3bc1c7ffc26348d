#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "base/affinity.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/time_slice.h"
#include "base/time_space.h"
#include "engine/job/blocked.h"

namespace hvdtune {
namespace {

constexpr std::size_t kMaxName = 4096;
constexpr std::size_t kMaxRequestBytes = 448 << 10;

std::vector<std::vector<int>> with_global_set(int size, std::vector<std::vector<int>> sets) {
  std::vector<int> everybody(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) everybody[static_cast<std::size_t>(rank)] = rank;
  sets.insert(sets.begin(), std::move(everybody));
  return sets;
}

Patience chosen_patience(Nanos wanted, const Arena& arena) {
  const bool crowded = arena.oversubscribed();
  const Nanos standard = crowded ? 500 * kMicrosecond : 50 * kMicrosecond;
  return {.awake = wanted >= 0 ? wanted : standard, .gives_way = crowded};
}

/// This rank's helpers.
HelperOptions chosen_helpers(const EngineOptions& options, const Arena& arena, Patience patience) {
  HelperOptions helpers;
  if (!options.in_shared_memory || arena.local_ranks() == 1) return helpers;
  helpers.threads =
      options.reduction_threads >= 0
          ? std::min(options.reduction_threads, kMostHelpers)
          : fitting_helpers(arena.local_ranks(), arena.cpus(), this_cpu_share().usable);
  // Where there are more threads than CPUs because somebody wants it so, polling keeps others from
  // running.
  const bool crowded = arena.local_ranks() * (1 + helpers.threads) > arena.cpus();
  helpers.patience = {patience.awake, crowded};
  return helpers;
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::kInvalidArgument, text);
}

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      rank_(options_.meeting.rank),
      size_(options_.meeting.size),
      sets_(with_global_set(size_, options_.process_sets)),
      session_(meet(options_.meeting, options_.network)),
      arena_(*session_.arena),
      recorder_(options_.recording.buffer_bytes,
                [this](const std::string& problem, bool recorded) {
                  on_recording_ended(problem, recorded);
                }),
      patience_(chosen_patience(options_.spin, arena_)),
      doorbell_(arena_.doorbell(rank_)),
      coordinator_bell_(session_.is_here(0) ? arena_.doorbell(0) : arena_.bridge_bell()),
      schedule_(arena_.schedule()),
      helpers_(std::make_shared<HelperPool>(chosen_helpers(options_, arena_, patience_))),
      gpus_(options_.gpus),
      staging_(gpus_),
      executor_(sets_, rank_, timeline_, *helpers_),
      stragglers_(options_.straggler, hosts()),
      status_(hosts()),
      direct_data_(arena_, sets_, rank_),
      distance_(arena_.distance(0), static_cast<int>(session_.local.size()),
                session_.local_index(rank_)),
      my_announcements_(arena_.announcements(rank_)),
      stack_query_([this] { doorbell_.wake_all(); }),
      applied_(options_.settings) {
  if (helpers_->helpers() > 0) {
    HVD_LOG_RANK(kInfo, rank_) << helpers_->helpers() << " reduction threads help this rank";
  }
  executor_.tune(tuning_of(applied_));
  executor_.stage_with(staging_);
  distance_.choose(options_.writing);
  if (!options_.in_shared_memory) session_.heap.reset();
  if (session_.heap) {
    registration_.emplace(session_.heap, rank_);
    for (std::uint32_t set = 0; set < sets_.numbers(); ++set) {
      executor_.add_registered_set(set, make_registered(set));
    }
  }
  if (is_coordinator()) {
    options_.coordinator.fusion_unit = std::int64_t{options_.local_size} * 8 * 64;
    coordinator_.emplace(options_.coordinator, sets_.all(), options_.settings);
    coordinator_->set_observer(this);
    stalls_.emplace(options_.stall, session_.peers);
    for (int rank = 0; rank < size_; ++rank) {
      announcements_.push_back(arena_.announcements(rank));
    }
    find_other_clocks();
  }
  {
    const SignalsBlocked signals;
    join_hosts();
    record_settings(applied_);
    if (is_coordinator()) order_first_timeline();
    start_watch();
    if (bridge_) bridge_->start();
  }
  try {
    // Under the watch: other data planes wait for all ranks here.
    executor_.connect(make_communicators());
    await_recording_decision();
  } catch (const std::exception& error) {
    abort_start(error);
    liveness_->stop();  // it sends by the bridge
    bridge_.reset();    // what it calls is still there
    throw;
  }
  const SignalsBlocked signals;
  begin_with_recording();
  thread_ = std::thread([this] {
    give_way_to_others();
    thread_main();
  });
  pthread_setname_np(thread_.native_handle(), "hvdtune");
}

Engine::~Engine() {
  shutdown();
  bridge_.reset();  // what it calls is still there
}

/// To the others it would look like a death; but what a data plane refuses all know by now.
void Engine::abort_start(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own != nullptr && own->kind() == ErrorKind::kInvalidArgument) return;
  const std::string why = own != nullptr ? own->what() : "it was interrupted";
  arena_.abort("rank " + std::to_string(rank_) + " cannot start: " + why);
}

/// What a job on several hosts needs besides.
void Engine::join_hosts() {
  if (!session_.across_hosts()) return;
  // The connections know nothing of what ends the job on this host alone.
  session_.mesh->set_outside_cause([this] { return arena_.abort_status(); });
  if (!session_.leaders) return;
  bridge_.emplace(session_, rank_, options_.host_fanout,
                  [this](int rank, std::string_view message) {
                    if (is_coordinator() || rank == rank_) return take_watch_message(rank, message);
                    liveness_->send(rank, message);
                  });
}

/// Other hosts have clocks of their own, and so may containers: their ranks' times mean nothing
/// here.
void Engine::find_other_clocks() {
  const std::string own = time_space();
  for (const PeerInfo& peer : session_.peers) {
    const std::string its = peer.here ? time_space(peer.pid) : std::string();
    other_clock_.push_back(!peer.here || (!own.empty() && !its.empty() && its != own));
  }
}

/// Null on a rank that is not in the set.
std::unique_ptr<Communicator> Engine::make_communicator(std::uint32_t set) {
  const int index = sets_.index_of(set, rank_);
  if (index < 0) return nullptr;
  auto communicator = options_.data_plane({session_, sets_.ranks(set), index, static_cast<int>(set),
                                           sets_.numbers() == 1, patience_, helpers_});
  if (options_.stall.enabled && options_.stall.warning > 0) {
    communicator->report_absence(
        options_.stall.warning,
        [this](const std::vector<int>& ranks, Nanos waited) { on_absence(ranks, waited); });
  }
  return communicator;
}

std::vector<std::unique_ptr<Communicator>> Engine::make_communicators() {
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::uint32_t set = 0; set < sets_.numbers(); ++set) {
    communicators.push_back(make_communicator(set));
  }
  return communicators;
}

/// Null on a rank that is not in the set.
std::unique_ptr<ShmRegistered> Engine::make_registered(std::uint32_t set) {
  const int index = sets_.index_of(set, rank_);
  if (index < 0 || !session_.heap) return nullptr;
  auto registered =
      std::make_unique<ShmRegistered>(session_.arena, session_.heap, sets_.ranks(set), index,
                                      static_cast<int>(set), patience_, helpers_);
  if (options_.stall.enabled && options_.stall.warning > 0) {
    registered->report_absence(
        options_.stall.warning,
        [this](const std::vector<int>& ranks, Nanos waited) { on_absence(ranks, waited); });
  }
  return registered;
}

Tuning Engine::tuning_of(const wire::RuntimeSettings& settings) const {
  return {settings.chunk_size, settings.one_shot_limit, options_.writing,
          Hierarchy{settings.hierarchical_allreduce, settings.hierarchical_allgather}};
}

std::shared_ptr<SharedBlock> Engine::allocate_shared(std::size_t bytes) {
  if (registration_) return registration_->allocate(bytes);
  if (session_.across_hosts()) refuse("the ranks of several hosts share no memory");
  if (!options_.in_shared_memory) refuse("tensors of this job do not travel through shared memory");
  refuse(size_ == 1 ? "a job of one process shares no memory"
                    : "this system gives the ranks no memory to share for tensors");
}

// ---- submission ---------------------------------------------------------------------------------

/// "3, which has the ranks [0, 2]". The caller holds table_mutex_.
std::string Engine::members_text(std::uint32_t set) const {
  return std::to_string(set) + ", which has the ranks " + wire::ranks_text(sets_.ranks(set));
}

/// Whether a request can be submitted. The caller holds table_mutex_: process sets may change
/// otherwise.
void Engine::check(const wire::Request& request) const {
  if (request.name.empty() || request.name.size() > kMaxName) {
    refuse("the name of a tensor must have 1 to " + std::to_string(kMaxName) +
           " bytes; this one has " + std::to_string(request.name.size()));
  }
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  const std::uint32_t set = request.process_set;
  if (joined_ && set == 0) {
    refuse_it("rank " + std::to_string(rank_) +
              " has joined; until all ranks have, it can submit nothing to the whole job");
  }
  if (!sets_.exists(set)) {
    refuse_it("process set " + std::to_string(set) + " does not exist or has not been registered");
  }
  if (sets_.index_of(set, rank_) < 0) {
    refuse_it("rank " + std::to_string(rank_) + " is not a member of the provided process set " +
              members_text(set));
  }
  if (request.kind == OpKind::kBroadcast && sets_.index_of(set, request.root) < 0) {
    refuse_it("invalid root rank " + std::to_string(request.root) + ": not a rank of process set " +
              members_text(set));
  }
  const bool scatters = request.kind == OpKind::kReducescatter;
  if (scatters && request.reduce_op != ReduceOp::kSum && request.reduce_op != ReduceOp::kAverage) {
    throw Error(ErrorKind::kMismatch,
                "tensor " + request.name + ": reducescatter only supports AVERAGE and SUM");
  }
  if (!ended_.ok()) throw Error(ended_);
}

/// Whether what comes with the request fits it. The caller holds table_mutex_.
void Engine::check_fit(const Submission& submission) const {
  const wire::Request& request = submission.request;
  const auto refuse_it = [&request](const std::string& why) {
    refuse("tensor " + request.name + ": " + why);
  };
  if (submission.memory.size() != request.tensors.size()) {
    refuse_it("every tensor of a request needs its memory");
  }
  if (request.kind != OpKind::kAlltoall) return;
  const auto members = sets_.ranks(request.process_set).size();
  if (submission.splits.size() != members) {
    refuse_it("Number of entries in splits (" + std::to_string(submission.splits.size()) +
              ") does not equal the number of processes in the set (" + std::to_string(members) +
              ")");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : submission.splits) {
    if (split < 0) refuse_it("splits must not be negative");
    sum += split;
  }
  const auto& shape = request.tensors.front().shape;
  if (!shape.empty() && sum > shape[0]) {
    refuse_it("Sum of splits entries is greater than the first dimension: " + std::to_string(sum) +
              " > " + std::to_string(shape[0]));
  }
}

/// Enters an operation into the table. The caller holds table_mutex_.
OperationPtr Engine::enter(Submission submission, wire::Slot& known_slot) {
  check(submission.request);
  check_fit(submission);
  auto operation = std::make_shared<Operation>();
  operation->request = std::move(submission.request);
  operation->memory = std::move(submission.memory);
  operation->splits = std::move(submission.splits);
  if (!table_.begin(operation, known_slot)) {
    refuse("tensor " + operation->request.name +
           " was submitted with the same name as another tensor that is still being processed; "
           "names in flight must be different");
  }
  operation->handle = next_handle_++;
  handles_.add(operation->handle, operation);
  return operation;
}

/// The same for what all ranks know already. The caller holds table_mutex_.
OperationPtr Engine::enter(const TensorOperation& wanted, wire::Slot& known_slot) {
  if (const wire::Request* agreed = table_.known(wanted)) {
    check(*agreed);
    OperationPtr operation = table_.begin_known(wanted.memory);
    if (wanted.kind == OpKind::kAlltoall) operation->splits = equal_splits(wanted);
    known_slot = operation->slot;
    operation->handle = next_handle_++;
    handles_.add(operation->handle, operation);
    return operation;
  }
  Submission submission{wanted.request(), {wanted.memory}, {}};
  if (wanted.kind == OpKind::kAlltoall) submission.splits = equal_splits(wanted);
  return enter(std::move(submission), known_slot);
}

/// Rows for each member; those that are left over stay. The caller holds table_mutex_.
std::vector<std::int64_t> Engine::equal_splits(const TensorOperation& alltoall) const {
  if (!sets_.exists(alltoall.process_set) || alltoall.shape.empty()) return {};  // refused
  const std::size_t members = sets_.ranks(alltoall.process_set).size();
  return std::vector<std::int64_t>(members, alltoall.shape[0] / static_cast<std::int64_t>(members));
}

std::int64_t Engine::submit(const TensorOperation& wanted) {
  const std::lock_guard lock(table_mutex_);
  wire::Slot known_slot = wire::kNoSlot;
  const OperationPtr operation = enter(wanted, known_slot);
  announce_entered(operation, known_slot, monotonic_now());
  return operation->handle;
}

std::int64_t Engine::submit(Submission submission) {
  std::shared_ptr<OnDevice> on_device;
  if (!submission.request.on_host()) {
    on_device = gpus_.accept(submission.request, submission.streams);
  }
  const std::lock_guard lock(table_mutex_);
  wire::Slot known_slot = wire::kNoSlot;
  const OperationPtr operation = enter(std::move(submission), known_slot);
  operation->on_device = std::move(on_device);
  const bool joins = operation->request.kind == OpKind::kJoin;
  // The others go on without this rank: direct rounds of its other threads must not wait.
  if (joins) settle_all_direct();
  announce_entered(operation, known_slot, monotonic_now());
  // Behind everything that this rank has announced before: the coordinator reads it in this order.
  if (joins) joined_ = true;
  return operation->handle;
}

/// Tells the coordinator of an operation, or takes it back. The caller holds table_mutex_.
void Engine::announce_entered(const OperationPtr& operation, wire::Slot known_slot, Nanos now) {
  try {
    announce(operation, known_slot, now);
  } catch (...) {
    table_.finish(operation, false);
    handles_.take(operation->handle);
    throw;
  }
}

/// The caller holds table_mutex_.
void Engine::announce(const OperationPtr& operation, wire::Slot known_slot, Nanos now) {
  operation->ticket = next_ticket_++;
  operation->submitted = now;
  if (operation->slot != wire::kNoSlot) {
    const bool registered = registration_ && registration_->publish(*operation);
    push_announcement(
        wire::encode_announce_slot(operation->slot, operation->ticket, now, registered));
  } else {
    const std::string bytes =
        wire::encode_announce_request(operation->request, operation->ticket, now);
    if (bytes.size() > kMaxRequestBytes) {
      refuse("the group " + operation->request.name + " of " +
             std::to_string(operation->request.tensors.size()) +
             " tensors is too large to describe in one message; split it");
    }
    push_announcement(bytes);
  }
  ring_coordinator(arrival_urgency(operation->request, known_slot));
}

/// The caller holds table_mutex_.
void Engine::ring_coordinator(Urgency urgency) {
  if (urgency == Urgency::kNone) return;  // somebody still comes, who rings
  if (ring_holder_ == std::this_thread::get_id()) {
    held_ring_ = std::max(held_ring_, urgency);
  } else {
    coordinator_bell_.ring(urgency);
  }
}

Engine::HeldRings::HeldRings(Engine& engine) : engine_(engine) {
  const std::lock_guard lock(engine_.table_mutex_);
  active_ = engine_.ring_holder_ == std::thread::id{};
  if (active_) engine_.ring_holder_ = std::this_thread::get_id();
}

Engine::HeldRings::~HeldRings() {
  if (!active_) return;
  const std::lock_guard lock(engine_.table_mutex_);
  engine_.ring_holder_ = {};
  const Urgency held = std::exchange(engine_.held_ring_, Urgency::kNone);
  // Who waits on the coordinator's rank, drives; if all is done by then, all has been read.
  if (!then_waits_ || !engine_.is_coordinator()) engine_.ring_coordinator(held);
}

/// Whether the coordinator has anything to do now. A tensor that others still miss needs no
/// wake-up; the last to arrive causes it.
Urgency Engine::arrival_urgency(const wire::Request& request, wire::Slot known_slot) {
  // Who is the last, a word of one host's arena cannot tell where there are others.
  if (known_slot != wire::kNoSlot && !session_.spans_hosts(sets_.ranks(request.process_set))) {
    const auto members = static_cast<std::uint32_t>(sets_.ranks(request.process_set).size());
    const bool last = arena_.slot_round(known_slot).announce(members).last;
    if (!last && arena_.joined().load(std::memory_order_seq_cst) == 0) return Urgency::kNone;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (arena_.doorbell(rank).blocked_on.load(std::memory_order_seq_cst) != blocked::kNothing) {
      return Urgency::kUrgent;
    }
  }
  return Urgency::kNormal;
}

/// The caller holds table_mutex_.
void Engine::push_announcement(std::string_view bytes) {
  if (announce_backlog_.empty() && my_announcements_.push(bytes)) return;
  // The coordinator is behind; progress sends the rest in order.
  announce_backlog_.emplace_back(bytes);
  coordinator_bell_.ring(Urgency::kUrgent);
  doorbell_.wake_all();
}

// ---- results ------------------------------------------------------------------------------------

OperationPtr Engine::find(std::int64_t handle) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr* found = handles_.find(handle);
  return found == nullptr ? nullptr : *found;
}

bool Engine::poll(std::int64_t handle) {
  const OperationPtr operation = find(handle);
  if (!operation) {
    refuse("handle " + std::to_string(handle) + " was not created or has been cleared");
  }
  return operation->done.load(std::memory_order_acquire);
}

bool Engine::is_done(std::int64_t handle) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr* found = handles_.find(handle);
  return found == nullptr || (*found)->done.load(std::memory_order_acquire);
}

bool Engine::wait(std::int64_t handle, Nanos deadline) {
  const OperationPtr operation = find(handle);
  if (!operation) return true;
  const auto done = [&operation] { return operation->done.load(std::memory_order_acquire); };
  if (done()) return true;
  doorbell_.blocked_on.store(operation->slot != wire::kNoSlot
                                 ? blocked::on_slot(operation->slot)
                                 : blocked::on_ticket(operation->ticket),
                             std::memory_order_seq_cst);
  if (arena_.collecting().load(std::memory_order_seq_cst) != 0) {
    coordinator_bell_.ring(Urgency::kUrgent);
  }
  const bool recorded = recorder_.active();
  const bool timed = recorded || is_coordinator();  // whose status says how long
  const Nanos began = timed ? monotonic_now() : 0;
  drive_until(done, deadline);
  if (timed) blocked_.fetch_add(monotonic_now() - began, std::memory_order_relaxed);
  doorbell_.blocked_on.store(blocked::kNothing, std::memory_order_seq_cst);
  if (recorded) recorder_.waited(*operation, began);
  return done();
}

OperationPtr Engine::take(std::int64_t handle) {
  const std::lock_guard lock(table_mutex_);
  const OperationPtr* found = handles_.find(handle);
  if (found == nullptr || !(*found)->done.load(std::memory_order_acquire)) return nullptr;
  return handles_.take(handle);
}

std::vector<int> Engine::hosts() const {
  return session_.across_hosts() ? session_.host_of
                                 : std::vector<int>(static_cast<std::size_t>(size_));
}

Status Engine::state() {
  const std::lock_guard lock(table_mutex_);
  return ended_;
}

// ---- life ---------------------------------------------------------------------------------------

bool Engine::end_job_by(Nanos deadline) {
  if (!over_ && !shutdown_announced_.exchange(true)) {
    {
      const std::lock_guard lock(table_mutex_);
      push_announcement(wire::encode_announce_shutdown());
    }
    coordinator_bell_.ring(Urgency::kUrgent);
  }
  if (!over_) drive_until([this] { return over_.load(); }, deadline);
  return over_;
}

void Engine::abort(const std::string& why) {
  arena_.abort("rank " + std::to_string(rank_) + " ended the job: " + why);
}

void Engine::shutdown() {
  end_job_by(kForever);
  if (!thread_.joinable()) return;
  stop_ = true;
  doorbell_.wake(Sleeper::kThread);
  thread_.join();
  {
    const std::lock_guard lock(drive_mutex_);  // a caller may not have noticed the end yet
    helpers_->stop();
    stop_gpus();
  }
  // Who waits for this rank in an operation is to learn the cause, not that it has left.
  if (session_.mesh && arena_.aborted()) session_.mesh->abort(arena_.abort_status().text);
  if (control_) control_->stop();
  stack_query_.stop();
  stacks_->stop();
  liveness_->stop();
  record_clock();  // what the watch had no turn for any more
  timeline_.stop();
  timeline_.join();
  end_recording();
  coordinator_steps().close();
  if (bridge_) bridge_->stop();
}

void Engine::on_peer_death(int rank) {
  // A rank may go once it has read the end of the schedule. Before, others may still need it.
  const std::uint64_t end = arena_.end_position().load();
  if (end != 0 && schedule_.passed(rank, end)) return;
  const PeerInfo& peer = session_.peers[static_cast<std::size_t>(rank)];
  arena_.abort("rank " + std::to_string(rank) + " (pid " + std::to_string(peer.pid) + " on " +
               peer.hostname +
               ") died: its process ended without shutting down. The job cannot go on.");
}

void Engine::abandon() {
  if (control_) control_->abandon();
  for (const Fd& socket : session_.sockets) {
    if (socket.valid()) close(socket.get());
  }
  if (session_.mesh) session_.mesh->abandon();
  if (bridge_) bridge_->abandon();
}

StepLog& Engine::coordinator_steps() { return coordinator_ ? coordinator_->steps() : no_steps_; }

std::uint64_t Engine::change_settings(const SettingsChange& change) {
  if (!coordinator_) refuse("settings are changed on rank 0 only");
  std::uint64_t epoch = 0;
  {
    const std::lock_guard lock(drive_mutex_);
    epoch = coordinator_->change_settings(change);
  }
  doorbell_.wake(Sleeper::kThread);
  return epoch;
}

wire::RuntimeSettings Engine::settings() {
  const std::lock_guard lock(table_mutex_);
  return applied_;
}

void Engine::stop_watching_steps() {
  if (!is_coordinator()) return;
  const std::lock_guard lock(drive_mutex_);
  options_.watch_steps = false;
  watch_traffic();
}

}  // namespace hvdtune
