#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "engine/execution/gpus.h"
#include "engine/submission/submission.h"
#include "observe/status/step_log.h"
#include "transport/arena/shared_heap.h"

namespace hvdtune {

/// One rank's communication engine: submit operations, wait for them. Everything in between runs in
/// *progress*: reading the schedule, executing batches and, on rank 0, coordinating. Progress is
/// made by whoever is at hand: a caller blocked in wait() drives it, otherwise the engine's thread,
/// which sleeps on the rank's doorbell while there is nothing to do.
///
/// All public methods may be called from any thread. None holds the caller longer than stated.
class Engine final {
 public:
  /// Meets the other ranks (see meet()) and starts the engine's thread.
  explicit Engine(EngineOptions options);
  /// shutdown(), then waits for the thread.
  ~Engine();
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

  /// The same for who is called when the operation is over, instead of asking by a handle: exactly
  /// once, also if the job ends or a rank dies; not if this throws. The call comes from whichever
  /// thread makes progress, perhaps before this returns, with no lock of the engine held: it may
  /// submit, but what it does keeps that thread from making progress. Results are those of take().
  void submit(Submission submission, OnDone on_done);
  /// Throws what submit() would now throw for this request, except for a name in flight: for who
  /// will submit it later, from another thread.
  void check(const wire::Request& request);

  /// What the allreduce of a handle is to submit_again(); nothing that fits anything if it was
  /// described by its name, is another operation, or unknown. After submit(const TensorOperation&)
  /// only.
  KnownOperation known(std::int64_t handle);
  /// submit() of operations as they were before, with other memory; appends their handles. Ends
  /// before the first that is in flight, or not known as that any more. Cheaper than one by one,
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
  /// The same for a caller that is called. Waits half a millisecond for the others at most. If the
  /// operation cannot go past the coordinator, it waits only for a short group, and makes the
  /// engine's progress meanwhile; that takes longer if there is a batch to execute.
  void submit_blocking(Submission submission, OnDone on_done);

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
  /// The same, if `why` is no matter of this rank's.
  void cancel(const std::string& why);

  /// For a forked child, which has no engine threads: closes the connections so that they do not
  /// outlive the parent. Nothing else may be called then, not even the destructor.
  void abandon();

  /// Rank 0: all ranks make this change at one place in the schedule. Returns the epoch. From any
  /// thread; several changes take effect in the order of their calls, each on top of those before.
  std::uint64_t change_settings(const SettingsChange& change);
  wire::RuntimeSettings settings();
  /// Has all ranks know that something waits for their attention, at one place in their work: of
  /// those that have completed the same operations, interrupted() is the same. Rank 0 decides where
  /// the place is; on other ranks this does nothing. A number has to be higher than the one before
  /// to have an effect. From then on nothing goes past the coordinator. From any thread.
  void interrupt(std::uint64_t number);
  /// The last interrupt() that lies before an operation which this rank has completed; 0 if none
  /// does. A load; from any thread.
  [[nodiscard]] std::uint64_t interrupted() const;
  /// Nobody reads steps() any more: small allreduces may go past the coordinator again. From any
  /// thread; may wait for a batch under way.
  void stop_watching_steps();
  /// Rank 0's steps; other ranks see none.
  StepLog& steps();

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
  [[nodiscard]] bool takes_records() const;
  /// A training step of this rank ends.
  void mark_step();
  [[nodiscard]] std::int64_t steps_ended();
  /// Something at this moment. Nothing if nobody records. Any thread.
  void mark(capture::MarkKind kind, std::int64_t value, std::string_view text);
  /// A reading of a counter, whose name tells its unit. As mark().
  void counter(std::string_view name, double value);
  /// After shutdown(): waits until all ranks have closed their captures; false at the deadline.
  bool await_recordings(Nanos deadline);
  /// Rank 0, after shutdown(): its captures.
  [[nodiscard]] const std::vector<std::string>& recorded() const;

  /// Called, on a thread of its own, when somebody asks for this rank's Python stack.
  void set_stack_source(std::function<std::string()> source);

  /// Rank 0: what `hvdtune top` shows, as a JSON object; see docs/live.md. Never waits for an
  /// operation, but up to 20 ms for the coordinator to read what it has been sent. Other ranks: an
  /// empty one.
  std::string status();
  /// A line of status() by another part of the program; an empty text takes it away.
  void note(const std::string& key, const std::string& text);
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
  [[nodiscard]] std::vector<ClockReading> clock_readings(std::size_t skip) const;

  [[nodiscard]] const std::vector<PeerInfo>& peers() const;
  /// By rank: the number of its host. All 0 on one host.
  [[nodiscard]] std::vector<int> hosts() const;
  /// CPUs that all ranks on this host may use together; the same number on all of them.
  [[nodiscard]] int host_cpus() const;
  /// Why the job cannot go on, or kOk.
  [[nodiscard]] Status state();
  [[nodiscard]] Gpus& gpus();
  /// Whether wire::RuntimeSettings::nccl_bypass_limit can do something: known once batches go by
  /// NCCL, where it is not 0 or the job is tuned. Any thread.
  [[nodiscard]] bool can_bypass_nccl() const;
  /// Whether a batch of this rank's has gone to NCCL. Any thread.
  [[nodiscard]] bool uses_nccl() const;

 private:
  /// What does the work: parts.h.
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace hvdtune
