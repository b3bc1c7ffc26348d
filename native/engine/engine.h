#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/patience.h"
#include "collective/communicator_factory.h"
#include "collective/shm/cache_distance.h"
#include "engine/coordination/coordinator.h"
#include "engine/coordination/stall_watch.h"
#include "engine/execution/device_completions.h"
#include "engine/execution/device_executor.h"
#include "engine/execution/executor.h"
#include "engine/execution/gpus.h"
#include "engine/job/process_sets.h"
#include "engine/operation/registration.h"
#include "engine/recording/recorder.h"
#include "engine/submission/direct_data.h"
#include "engine/submission/handle_table.h"
#include "engine/submission/operation_table.h"
#include "engine/watch/stack_query.h"
#include "engine/watch/stack_service.h"
#include "observe/capture.h"
#include "observe/cpu_waits.h"
#include "observe/file_claim.h"
#include "observe/job_status.h"
#include "observe/straggler.h"
#include "observe/timeline.h"
#include "transport/control/bridge.h"
#include "transport/control/clock_sync.h"
#include "transport/control/control_server.h"
#include "transport/control/liveness.h"
#include "transport/meeting/meet.h"

namespace hvdtune {

/// How a job is recorded; where, says whoever starts a recording.
struct RecordingOptions {
  /// Rank 0 alone writes Horovod's layout (Timeline); otherwise ranks write captures.
  bool horovod_format = true;
  bool all_ranks = true;  ///< of captures
  std::string job;        ///< its name, for the identity
  /// Members of the identity, as JSON without braces, but for the job and the time.
  std::string identity = "\"rank\":0";
  std::size_t buffer_bytes = capture::Capture::kDefaultBytes;
  std::size_t file_limit = 0;  ///< bytes of a rank's file; 0 = no limit
  capture::Window window;      ///< of the recording that begins with the job
};

struct EngineOptions {
  MeetingOptions meeting;
  std::optional<NetworkOptions> network;  ///< none: all ranks are on this host
  /// To how many hosts one passes the schedule on (HostTree). All ranks say the same.
  int host_fanout = 15;
  int local_size = 1;
  CoordinatorOptions coordinator;
  wire::RuntimeSettings settings;
  /// How long a blocked caller stays awake (see Patience); negative = chosen by the engine.
  Nanos spin = -1;
  /// CPU for the communication thread; negative = not pinned.
  int affinity = -1;
  Writing writing = Writing::kMeasured;  ///< this rank's; the others' may differ
  /// Threads that help this rank to reduce what goes through shared memory, at most kMostHelpers;
  /// negative = as many as fit. The others' may differ. Without shared memory, or anybody to share
  /// it with, there are none.
  int reduction_threads = 0;
  /// Global ranks of the process sets 1, 2, … (set 0 is the whole job), each ascending.
  std::vector<std::vector<int>> process_sets;
  StallOptions stall;
  StragglerOptions straggler;
  /// Added to this rank's clock where ranks compare theirs; for tests.
  Nanos clock_shift = 0;
  /// Recorded from the first operation on; empty = not yet.
  std::string timeline;
  bool timeline_mark_cycles = false;
  RecordingOptions recording;
  /// steps() is to see everything: nothing goes past the coordinator.
  bool watch_steps = false;
  /// The data plane.
  CommunicatorFactory data_plane = make_own_communicator;
  /// It is shared memory, where members have some in common: what goes through that without a
  /// communicator (direct rounds, reductions in place) may do so.
  bool in_shared_memory = true;
  DeviceOptions gpus;
};

/// What one rank submits.
struct Submission {
  wire::Request request;
  std::vector<TensorMemory> memory;
  std::vector<std::int64_t> splits;  ///< alltoall only
  /// Of tensors on a GPU: they can be used after these streams' work up to now.
  std::vector<CudaStream> streams = {};
};

/// One rank's communication engine: submit operations, wait for them. Everything in between runs in
/// *progress*: reading the schedule, executing batches and, on rank 0, coordinating. Progress is
/// made by whoever is at hand: a caller blocked in wait() drives it, otherwise the engine's thread,
/// which sleeps on the rank's doorbell while there is nothing to do.
///
/// All public methods may be called from any thread. None holds the caller longer than stated.
class Engine final : private CoordinatorObserver {
 public:
  /// Meets the other ranks (see meet()) and starts the engine's thread.
  explicit Engine(EngineOptions options);
  /// shutdown(), then waits for the thread.
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Hands an operation over; returns its handle. Memory stays the caller's and must live until the
  /// operation is done. Never blocks for other ranks.
  /// Throws Error(kInvalidArgument) for a name in flight, an unknown process set, a rank that is
  /// not in it, a root outside it, or splits that do not fit; the job's end as its own kind.
  std::int64_t submit(Submission submission);
  /// The same, cheaper: the call made for every gradient. Once all ranks know the tensor, nothing
  /// is copied or allocated.
  std::int64_t submit(const TensorOperation& wanted);

  /// What the allreduce of a handle is to submit_again(); nothing that fits anything if it was
  /// described by its name, is another operation, or unknown. After submit(const TensorOperation&)
  /// only.
  KnownOperation known(std::int64_t handle);
  /// submit() of operations as they were before, with other memory; appends their handles. Ends in
  /// front of the first that is in flight, or not known as that any more. Cheaper than one by one,
  /// above all when what they need has left the cache. Throws as submit() does, at the first.
  void submit_again(std::span<const KnownOperation> operations,
                    std::span<const TensorMemory> memory, std::vector<std::int64_t>& handles);

  /// While one lives, nothing that its thread submits wakes the coordinator: at its end it hears of
  /// everything together. For many submissions in a row; must not live while one waits. Of several
  /// at a time, in different threads, only the first has this effect.
  class HeldRings {
   public:
    explicit HeldRings(Engine& engine);
    ~HeldRings();
    HeldRings(const HeldRings&) = delete;
    HeldRings& operator=(const HeldRings&) = delete;

    /// The caller goes on to wait() for what it has submitted, whatever happens in between: the
    /// rank that coordinates need not wake its own thread.
    void then_waits() { then_waits_ = true; }

   private:
    Engine& engine_;
    bool active_ = false;
    bool then_waits_ = false;
  };

  /// The same, for a caller that waits at once. A small operation whose members all do that is done
  /// when this returns; otherwise it is on its way like any other.
  std::int64_t submit_blocking(Submission submission);
  std::int64_t submit_blocking(const TensorOperation& wanted);

  /// Takes part in the whole job's allreduces with zeros until all ranks have joined; returns a
  /// handle, whose operation ends then, with the last rank to join as its number. Until then this
  /// rank can submit nothing to the whole job: Error(kInvalidArgument), also for a second join().
  /// `device`: the GPU on which zeros for tensors on GPUs are made, if this rank has had none
  /// there; of no matter where there is no GPU.
  std::int64_t join(int device = wire::kOnHost);
  /// All ranks of the job ask for the same new process set, whether they are in it or not. Ends
  /// with its number; with Error(kInvalidArgument) on every rank when they differ or when there
  /// can be no such set. One such operation at a time.
  std::int64_t add_process_set(std::vector<std::int32_t> ranks);
  /// The same for the end of a set: what is queued in it fails with kAborted.
  std::int64_t remove_process_set(std::uint32_t set);
  /// Global ranks of a set; empty when it does not exist.
  std::vector<int> process_set_ranks(std::uint32_t set);
  /// This rank's place in a set, and how many there are; (-1, 0) when it does not exist.
  std::pair<int, int> place_in_set(std::uint32_t set);

  /// True when the operation is done. Throws Error(kInvalidArgument) for an unknown handle.
  bool poll(std::int64_t handle);
  /// Whether wait() would return at once.
  bool is_done(std::int64_t handle);
  /// Waits until the operation is done; false at the deadline.
  bool wait(std::int64_t handle, Nanos deadline);
  /// Forgets a finished operation and returns it with its results; null for an unknown handle.
  OperationPtr take(std::int64_t handle);
  /// Forgets an operation that is done, went well and brought no results; its memory serves the
  /// next one under its name. False, with nothing done, if it is not such a one: take() it.
  bool retire(std::int64_t handle);
  /// The same for several, whose handles become 0; those <= 0 are none.
  void retire(std::span<std::int64_t> handles);

  /// Memory that all ranks can read and write, for tensors that are reduced often: an allreduce in
  /// place of tensors that all ranks have in such memory is not packed, from the second time that
  /// its name is used. Lives as long as the object. Throws Error(kInvalidArgument) where there is
  /// none.
  std::shared_ptr<SharedBlock> allocate_shared(std::size_t bytes);

  /// Ends the job for all ranks: operations in flight fail everywhere. Idempotent; blocks until
  /// this rank's engine has stopped and a call of the stack source has returned: the caller must
  /// not hold what that needs. One thread at a time.
  void shutdown();
  /// The first half of shutdown(): false when the other ranks have not agreed at the deadline.
  bool end_job_by(Nanos deadline);
  /// Ends the job at once, for all ranks, as if this one had died.
  void abort(const std::string& why);

  /// For a forked child, which has no engine threads: closes the connections so that they do not
  /// outlive the parent. Nothing else may be called then, not even the destructor.
  void abandon();

  /// Rank 0: all ranks make this change at one place in the schedule. Returns the epoch. From any
  /// thread; several changes take effect in the order of their calls, each on top of those before.
  std::uint64_t change_settings(const SettingsChange& change);
  wire::RuntimeSettings settings();
  /// Nobody reads steps() any more: small allreduces may go past the coordinator again. From any
  /// thread; may wait for a batch under way.
  void stop_watching_steps();
  /// Rank 0's steps; other ranks see none.
  StepLog& steps() { return coordinator_steps(); }

  /// Asks for a recording to begin or to end, on all ranks at one place in the schedule; the number
  /// of this rank's wish. Either one rank asks, or all ranks ask for the same. What is being
  /// recorded already, or is not, is left alone.
  std::uint64_t ask_timeline(const wire::TimelineOrder& order);
  /// Waits until it is so on this rank, and a file that has ended is complete; false at the
  /// deadline. True also if the job ends first.
  bool await_timeline(std::uint64_t number, Nanos deadline);
  /// Why nothing came of this rank's last wish; empty if it did.
  std::string timeline_problem();
  /// Whether a recording is under way, or waits for its first step.
  bool is_recorded();
  /// Rank 0: the file of that recording, as it is to be called when it is finished; empty if there
  /// is none. Any thread.
  std::string recorded_file();
  /// Whether records are taken at this moment: a recording has begun. Any thread.
  [[nodiscard]] bool takes_records() const { return recorder_.active(); }
  /// A training step of this rank ends.
  void mark_step();
  [[nodiscard]] std::int64_t steps_ended() { return recorder_.capture().steps(); }
  /// Something at this moment. Nothing if nobody records. Any thread.
  void mark(capture::MarkKind kind, std::int64_t value, std::string_view text) {
    recorder_.capture().mark(kind, value, text);
  }
  /// A reading of a counter, whose name tells its unit. As mark().
  void counter(std::string_view name, double value) { recorder_.capture().counter(name, value); }
  /// After shutdown(): waits until all ranks have closed their captures; false at the deadline.
  bool await_recordings(Nanos deadline);
  /// Rank 0, after shutdown(): its captures.
  [[nodiscard]] const std::vector<std::string>& recorded() const { return recorded_; }

  /// Called, on a thread of its own, when somebody asks for this rank's Python stack.
  void set_stack_source(std::function<std::string()> source);

  /// Rank 0: what `hvdtune top` shows, as a JSON object; see docs/live.md. Never waits for an
  /// operation, but up to 20 ms for the coordinator to read what it has been sent. Other ranks: an
  /// empty one.
  std::string status();
  /// A line of status() by another part of the program; an empty text takes it away.
  void note(const std::string& key, const std::string& text) { status_.note(key, text); }
  /// Rank 0: other processes of this user may ask, at the abstract socket `name`. `identity`: what
  /// is put in front of the status, the inside of a JSON object. `command` answers what begins with
  /// "timeline-", on the server's thread; what it throws goes to the asker as a sentence.
  /// Where the name is taken, nobody can ask.
  void serve(const std::string& name, std::string identity,
             std::function<std::string(std::string_view)> command);

  /// From now on this rank's clock is compared with rank 0's every 10 s, and at once. All ranks
  /// that want to know call it; rank 0's readings are zero.
  void start_clock();
  /// One last comparison, then none; waits for it until `deadline`, or until the job is over. False
  /// if there was none.
  bool stop_clock(Nanos deadline);
  /// What was found, except for the first `skip`: append those that are new. Any thread.
  [[nodiscard]] std::vector<ClockReading> clock_readings(std::size_t skip) const {
    return clock_->readings(skip);
  }

  [[nodiscard]] const std::vector<PeerInfo>& peers() const { return session_.peers; }
  /// By rank: the number of its host. All 0 on one host.
  [[nodiscard]] std::vector<int> hosts() const;
  /// CPUs that all ranks on this host may use together; the same number on all of them.
  [[nodiscard]] int host_cpus() const { return arena_.cpus(); }
  /// Why the job cannot go on, or kOk.
  [[nodiscard]] Status state();
  [[nodiscard]] Gpus& gpus() { return gpus_; }
  /// Whether wire::RuntimeSettings::nccl_bypass_limit can do something: known once batches go by
  /// NCCL, where it is not 0 or the job is tuned. Any thread.
  [[nodiscard]] bool can_bypass_nccl() const { return can_bypass_nccl_; }
  /// Whether a batch of this rank's has gone to NCCL. Any thread.
  [[nodiscard]] bool uses_nccl() const { return uses_nccl_; }

 private:
  [[nodiscard]] bool is_coordinator() const { return rank_ == 0; }
  StepLog& coordinator_steps();
  std::unique_ptr<Communicator> make_communicator(std::uint32_t set);
  std::vector<std::unique_ptr<Communicator>> make_communicators();
  std::unique_ptr<ShmRegistered> make_registered(std::uint32_t set);
  [[nodiscard]] Tuning tuning_of(const wire::RuntimeSettings& settings) const;
  [[nodiscard]] std::string members_text(std::uint32_t set) const;
  void check(const wire::Request& request) const;
  void check_fit(const Submission& submission) const;
  std::int64_t submit_change(OpKind kind, const char* name, std::vector<std::int32_t> ranks);
  OperationPtr enter(Submission submission, wire::Slot& known_slot);
  OperationPtr enter(const TensorOperation& wanted, wire::Slot& known_slot);
  [[nodiscard]] std::vector<std::int64_t> equal_splits(const TensorOperation& alltoall) const;
  void announce_entered(const OperationPtr& operation, wire::Slot known_slot, Nanos now);
  void announce(const OperationPtr& operation, wire::Slot known_slot, Nanos now);
  bool retire_locked(std::int64_t handle);
  [[nodiscard]] Urgency arrival_urgency(const wire::Request& request, wire::Slot known_slot);
  void ring_coordinator(Urgency urgency);
  void push_announcement(std::string_view bytes);
  OperationPtr find(std::int64_t handle);
  void find_other_clocks();
  void join_hosts();
  void abort_start(const std::exception& error);
  void watch_traffic();

  // Recording (recording.cc).
  void order_timeline(int rank, wire::TimelineOrder order);
  void decide_start(wire::TimelineOrder& order);
  std::string claim_file(wire::TimelineOrder& order);
  void carry_out(wire::TimelineOrder& order);
  void publish_order(const wire::Schedule& schedule);
  bool is_new_toggle(int rank);
  [[nodiscard]] bool will_be_recorded();
  void order_first_timeline();
  void await_recording_decision();
  void begin_with_recording();
  void apply_timeline(const wire::Schedule& schedule);
  void start_capture(const wire::TimelineOrder& order);
  void end_recording();
  void on_recording_ended(const std::string& problem, bool recorded);
  void record_settings(const wire::RuntimeSettings& settings);
  void record_stall(const std::string& report);

  // Direct rounds (direct.cc).
  template <typename Submitted>
  std::int64_t submit_and_settle(Submitted&& submitted);
  [[nodiscard]] std::size_t direct_limit(OpKind kind, std::size_t members) const;
  [[nodiscard]] CopyKind direct_writing(std::size_t bytes);
  bool arrive_direct(Operation& operation);
  Nanos wait_direct(const Operation& operation, const SlotRound& round) const;
  void settle_direct(const OperationPtr& operation);
  void settle_all_direct();
  [[nodiscard]] bool direct_is_complete(const Operation& operation) const;
  void finish_direct(const OperationPtr& operation);
  void leave_direct(const OperationPtr& operation);

  [[nodiscard]] bool shares_sums(std::size_t members, std::size_t bytes) const;

  // Progress; the caller holds drive_mutex_. Each returns whether it did anything.
  bool progress() noexcept;
  bool make_progress();
  bool coordinate();
  bool read_announcements();
  void hear(int rank, std::string_view bytes, Nanos now);
  void publish(const std::vector<wire::Schedule>& schedules);
  bool flush_backlogs();
  bool read_schedule();
  void execute(const wire::Schedule& batch);
  void reject(const wire::Schedule& schedule);
  void evict(wire::Slot slot);
  bool launch(const wire::Schedule& schedule, const std::vector<OperationPtr>& batch,
              std::uint64_t tensors);
  void watch_gpu();
  void on_slow_gpu(const DeviceBatch& batch, Nanos waited);
  [[nodiscard]] std::optional<std::string> why_over() const;
  bool finish_launched();
  void finish_all_launched();
  void announce_done(DeviceBatch& batch);
  void finish_one(DeviceBatch& batch);
  void trace(const DeviceBatch& batch, const DeviceTimes& times);
  void stop_gpus();
  void add_set(const wire::Schedule& schedule);
  void remove_set(const wire::Schedule& schedule);
  void end_join(const wire::Schedule& schedule);
  void finish_change(const wire::Schedule& schedule, std::int64_t number);
  void announce_end(const std::string& why);
  void end_job(const Status& status);
  void check_stalls(Nanos now);
  void watch_steps();

  // Driving.
  void drive_until(const std::function<bool()>& done, Nanos deadline);
  void leave_to_thread();
  void wake_other_callers();
  [[nodiscard]] bool poll_doorbell(std::uint32_t seen) const;
  [[nodiscard]] Urgency wake_threshold() const;
  [[nodiscard]] Nanos next_deadline();
  void thread_main();
  void on_peer_death(int rank);
  void start_watch();
  Nanos watch_turn(Nanos now);
  Nanos check_coordinator(Nanos now);
  void record_clock();
  void report_silence(std::vector<std::string> names, Nanos waited);
  std::string answer(std::string_view question);
  std::string stacks_text(std::string_view which);
  [[nodiscard]] std::string where(int rank) const;
  [[nodiscard]] std::string process_state(int rank) const;
  bool send_to_watch(int rank, std::string_view message);
  void hear_for_watch(int rank, std::string_view message);
  void take_watch_message(int from, std::string_view message);
  void on_absence(const std::vector<int>& ranks, Nanos waited);

  [[nodiscard]] StragglerWatch::Awaited who_waits_for(const TensorEntry& entry);
  void tell_straggler(const StragglerNotice& notice, const std::string& name,
                      const std::string& text, int rank, Nanos now);
  void look_now();

  // CoordinatorObserver
  void on_first_ready(const TensorEntry& entry, Nanos time) override;
  void on_rank_ready(const TensorEntry& entry, int rank, Nanos time) override;
  void on_all_ready(const TensorEntry& entry, Nanos time) override;
  void on_absent(const TensorEntry& entry, std::size_t ranks) override;
  void on_batch(std::uint64_t serial, Nanos closed, Nanos first_ready) override {
    recorder_.closed(serial, closed, first_ready);
  }

  EngineOptions options_;
  int rank_;
  int size_;
  ProcessSets sets_;  // changed under drive_mutex_ and table_mutex_
  Timeline timeline_;
  HostSession session_;
  Arena& arena_;
  Recorder recorder_;
  std::string recorded_path_;          // rank 0's file of the last capture
  std::vector<std::string> recorded_;  // all of them, as they are to be called when finished
  std::atomic<bool> recording_failed_{false};  // nobody has looked yet what follows from it
  bool cycles_marked_ = false;
  bool records_arrivals_ = false;
  std::set<std::string> compressed_;                  // rank 0: files that finishing is to compress
  std::vector<wire::TimelineOrder> timeline_wishes_;  // rank 0: of all ranks
  std::vector<std::size_t> timeline_heard_;           // how many of them each rank has had
  /// Rank 0: what the last order comes to that it has not read in the schedule itself.
  struct Ordered {
    bool recorded = false;
    std::string path;
  };
  std::optional<Ordered> ordered_;
  FileClaim claim_;                               // rank 0: until its recording has begun
  std::map<std::string, std::string> asked_for_;  // rank 0: what another file was taken for
  std::uint64_t orders_published_ = 0;
  std::uint64_t orders_read_ = 0;
  std::vector<std::uint64_t> toggles_;  // rank 0: by signal, of each rank
  Nanos toggled_ = 0;
  Patience patience_;
  Doorbell& doorbell_;
  Doorbell& coordinator_bell_;  // where rank 0 is on another host: the bridge's
  BroadcastRing schedule_;
  std::optional<Registration> registration_;  // its publish() under table_mutex_
  std::shared_ptr<HelperPool> helpers_;       // under drive_mutex_
  Gpus gpus_;
  Staging staging_;  // under drive_mutex_, as what works with NCCL is
  Executor executor_;
  std::optional<DeviceExecutor> device_executor_;  // once there was a batch for it
  std::atomic<bool> can_bypass_nccl_ = false;
  std::atomic<bool> uses_nccl_ = false;
  std::optional<DeviceCompletions> completions_;
  std::optional<Coordinator> coordinator_;  // rank 0
  std::optional<StallWatch> stalls_;        // rank 0
  StragglerWatch stragglers_;
  std::optional<CpuWaits> cpu_waits_;  // where ranks take turns on the CPUs
  std::uint64_t watched_step_ = 0;
  JobStatus status_;
  std::atomic<std::uint64_t> looks_{0};     // of the coordinator: begun, and ended
  std::atomic<Nanos> blocked_{0};           // this rank's callers, so far
  std::vector<MessageRing> announcements_;  // rank 0 reads them all
  std::vector<bool> other_clock_;           // rank 0: of which ranks it cannot tell the time
  struct Unpublished {
    std::string bytes;
    wire::ScheduleType type;
  };
  std::deque<Unpublished> schedule_backlog_;
  std::vector<std::uint64_t> blocked_on_;  // kept for its memory
  StepLog no_steps_;

  // Submission side; never held while executing.
  std::mutex table_mutex_;
  OperationTable table_;
  HandleTable handles_;
  DirectData direct_data_;
  CacheDistance distance_;  // of the whole job's members; asked under drive_mutex_, too
  CopyKind direct_writing_ = CopyKind::kCached;
  std::int64_t next_handle_ = 1;
  wire::Ticket next_ticket_ = 1;
  std::uint64_t timeline_asked_ = 0;
  std::string timeline_problem_;
  std::string recorded_file_;  // rank 0: of the last recording
  MessageRing my_announcements_;
  std::deque<std::string> announce_backlog_;
  std::thread::id ring_holder_;         // none, or whose rings are held back
  Urgency held_ring_ = Urgency::kNone;  // the most urgent of them
  bool joined_ = false;                 // until all ranks have
  Status ended_;                        // set once, when no more operations are accepted
  StackQuery stack_query_;
  wire::RuntimeSettings applied_;

  // Who makes progress. Held while doing so, never while sleeping.
  std::timed_mutex drive_mutex_;
  std::atomic<int> callers_{0};  // blocked callers; while there are any, the thread stands back
  // Until when the thread sleeps; kForever while it does not, or stands back for callers.
  std::atomic<Nanos> thread_deadline_{kForever};
  std::atomic<bool> stop_{false};
  std::atomic<bool> shutdown_announced_{false};
  std::atomic<bool> over_{false};  // ended_ is set
  std::atomic<std::uint64_t> timeline_answered_{0};
  std::thread thread_;
  // The watch's thread.
  std::optional<ClockSync> clock_;
  std::size_t recorded_readings_ = 0;
  std::optional<StackService> stacks_;
  std::uint32_t seen_checks_ = 0;  // of rank 0, for stalls
  Nanos silent_since_ = 0;         // 0 = this rank waits for nothing
  Nanos silence_reported_ = 0;
  Nanos next_silence_check_ = 0;
  std::optional<LivenessWatch> liveness_;
  std::optional<Bridge> bridge_;  // of leaders, where there are several hosts
  // Rank 0, behind what it asks.
  std::function<std::string(std::string_view)> command_;
  std::string identity_;
  std::optional<ControlServer> control_;
};

}  // namespace hvdtune
