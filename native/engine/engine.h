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

/// One rank's communication engine: submit operations, wait for them. All other work is called
/// *progress*: reading the schedule, executing batches and, on rank 0, coordinating. A caller
/// blocked in wait() makes progress itself; otherwise the engine's thread does, which sleeps on the
/// rank's doorbell while there is nothing to do.
///
/// All public methods may be called from any thread. None blocks the caller longer than stated.
class Engine final {
 public:
  /// Meets the other ranks (see meet()) and starts the engine's thread.
  explicit Engine(EngineOptions options);
  /// shutdown(), then waits for the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Submits an operation; returns its handle. The caller owns the memory, which must exist until
  /// the operation is done. Never blocks for other ranks. Throws Error(kInvalidArgument) for a name
  /// in flight, an unknown process set, a rank that is not in it, a root outside it, or splits that
  /// do not fit; if the job has ended, throws the Error that ended it.
  std::int64_t submit(Submission submission);
  /// The same, but cheaper: the call for every gradient. Once all ranks know the tensor, nothing is
  /// copied or allocated.
  std::int64_t submit(const TensorOperation& wanted);

  /// The same, but calls `on_done` when the operation is over, instead of returning a handle:
  /// exactly once, even if the job ends or a rank dies; not if this throws. The thread that makes
  /// progress calls it, perhaps before this returns, and holds no lock of the engine: `on_done` may
  /// submit, but blocks that thread's progress while it runs. Results are those of take().
  void submit(Submission submission, OnDone on_done);
  /// Throws what submit() would now throw for this request, except for a name in flight. For
  /// callers that submit later, from another thread.
  void check(const wire::Request& request);

  /// Describes the allreduce of a handle for submit_again(). The result matches nothing if the
  /// operation was announced with its description, is not an allreduce, or is unknown. Only after
  /// submit(const TensorOperation&).
  KnownOperation known(std::int64_t handle);
  /// Submits operations as before, with other memory; appends their handles. Stops before the first
  /// that is in flight, or no longer known under this agreement. Cheaper than single calls, above
  /// all if their data has left the cache. Throws like submit(), at the first that it refuses.
  void submit_again(std::span<const KnownOperation> operations,
                    std::span<const TensorMemory> memory, std::vector<std::int64_t>& handles);

  /// While an object of this class exists, its thread's submissions do not wake the coordinator;
  /// the destructor wakes it once for all of them. For many submissions in a row; its thread must
  /// not wait meanwhile. If several exist at a time, in different threads, only the first has this
  /// effect.
  class HeldRings {
   public:
    explicit HeldRings(Engine& engine);
    ~HeldRings();
    HeldRings(const HeldRings&) = delete;
    HeldRings& operator=(const HeldRings&) = delete;

    /// Promises that the caller will wait() for its submissions in any case, so that the
    /// coordinating rank need not wake its own thread.
    void then_waits() { then_waits_ = true; }

   private:
    Engine& engine_;
    bool active_ = false;
    bool then_waits_ = false;
  };

  /// Like submit(), for a caller that waits at once. If all members call it for a small operation,
  /// the operation is done when this returns; otherwise it continues like any other.
  std::int64_t submit_blocking(Submission submission);
  std::int64_t submit_blocking(const TensorOperation& wanted);
  /// The same, but calls `on_done`. Waits at most half a millisecond for the other ranks. If
  /// the operation cannot bypass the coordinator, waits only if it is a short group, and makes
  /// progress meanwhile; this takes longer if there is a batch to execute.
  void submit_blocking(Submission submission, OnDone on_done);

  /// Contributes zeros to the whole job's allreduces until all ranks have joined. Returns the
  /// handle of an operation that ends then; its number is the last rank that has joined. Until then
  /// this rank can submit nothing to the whole job: Error(kInvalidArgument), also for a second
  /// join(). `device`: the GPU on which zeros for GPU tensors are made, if this rank has had no
  /// tensors on a GPU; ignored if it cannot be used.
  std::int64_t join(int device = wire::kOnHost);
  /// Adds a process set; all ranks of the job must ask for the same, whether they are in it or not.
  /// The operation ends with the set's number, or with kInvalidArgument on every rank if the ranks
  /// differ or there can be no such set. One such operation at a time.
  std::int64_t add_process_set(std::vector<std::int32_t> ranks);
  /// Removes a process set in the same way; operations queued in it fail with kAborted.
  std::int64_t remove_process_set(std::uint32_t set);
  /// Global ranks of a set; empty if it does not exist.
  std::vector<int> process_set_ranks(std::uint32_t set);
  /// This rank's index in a set, and the set's size; (-1, 0) if the set does not exist.
  std::pair<int, int> place_in_set(std::uint32_t set);

  /// Whether the operation is done. Throws Error(kInvalidArgument) for an unknown handle.
  bool poll(std::int64_t handle);
  /// Whether wait() would return at once.
  bool is_done(std::int64_t handle);
  /// Waits until the operation is done; false at the deadline.
  bool wait(std::int64_t handle, Nanos deadline);
  /// Forgets a finished operation and returns it with its results; null for an unknown handle.
  OperationPtr take(std::int64_t handle);
  /// Forgets an operation that is done, succeeded and has no results; the next operation of its
  /// name reuses its memory. Otherwise does nothing and returns false: use take() then.
  bool retire(std::int64_t handle);
  /// The same for several, whose handles become 0; handles <= 0 are ignored.
  void retire(std::span<std::int64_t> handles);

  /// Memory that all ranks can read and write, for tensors that are reduced often: an allreduce in
  /// place is not packed if all ranks have its tensors in such memory, from the second use of its
  /// name on. It exists as long as the returned object. Throws Error(kInvalidArgument) if there is
  /// none.
  std::shared_ptr<SharedBlock> allocate_shared(std::size_t bytes);

  /// Ends the job for all ranks: operations in flight fail everywhere. Idempotent; blocks until
  /// this rank's engine has stopped and any call of the stack source has returned: the caller must
  /// not hold a lock that the stack source needs. One thread at a time.
  void shutdown();
  /// The first half of shutdown(): false if the other ranks have not agreed by the deadline.
  bool end_job_by(Nanos deadline);
  /// Ends the job at once, for all ranks, as if this one had died.
  void abort(const std::string& why);
  /// The same, but does not name this rank: `why` is the whole reason.
  void cancel(const std::string& why);

  /// For a forked child, which has no engine threads: closes the connections so that they do not
  /// outlive the parent. Nothing else may be called then, not even the destructor.
  void abandon();

  /// Rank 0: all ranks make this change at one place in the schedule. Returns the epoch. Any
  /// thread; several changes take effect in the order of their calls, each on top of the earlier
  /// ones.
  std::uint64_t change_settings(const SettingsChange& change);
  wire::RuntimeSettings settings();
  /// Tells all ranks, at one place in the schedule, that something needs their attention: on ranks
  /// that have completed the same operations, interrupted() is the same. Rank 0 chooses the place;
  /// on other ranks this does nothing. A number has an effect only if it is higher than the last.
  /// From then on no operation bypasses the coordinator. Any thread.
  void interrupt(std::uint64_t number);
  /// The number of the last interrupt() before an operation that this rank has completed; 0 if
  /// there is none. Costs one load; any thread.
  [[nodiscard]] std::uint64_t interrupted() const;
  /// Says that nobody reads steps() any more, so small allreduces may bypass the coordinator again.
  /// Any thread; may wait for a batch under way.
  void stop_watching_steps();
  /// Rank 0's steps; other ranks see none.
  StepLog& steps();

  /// Asks for a recording to begin or to end, on all ranks at one place in the schedule. Returns
  /// the number of this rank's request. Either one rank asks, or all ranks ask for the same. Does
  /// nothing if the job is in the requested state already.
  std::uint64_t ask_timeline(const wire::TimelineOrder& order);
  /// Waits until the request is fulfilled on this rank, and an ended file is complete; false at the
  /// deadline. Also true if the job ends first.
  bool await_timeline(std::uint64_t number, Nanos deadline);
  /// Why this rank's last request was not fulfilled; empty if it was.
  std::string timeline_problem();
  /// Whether a recording is under way, or waits for its first step.
  bool is_recorded();
  /// Rank 0: the final file name of that recording; empty if there is none. Any thread.
  std::string recorded_file();
  /// Whether records are taken at this moment: a recording has begun. Any thread.
  [[nodiscard]] bool takes_records() const;
  /// Call it at the end of a training step of this rank.
  void mark_step();
  [[nodiscard]] std::int64_t steps_ended();
  /// Records an event at this moment. Does nothing if nobody records. Any thread.
  void mark(capture::MarkKind kind, std::int64_t value, std::string_view text);
  /// Records a reading of a counter, whose name includes its unit. Like mark().
  void counter(std::string_view name, double value);
  /// After shutdown(): waits until all ranks have closed their captures; false at the deadline.
  bool await_recordings(Nanos deadline);
  /// Rank 0, after shutdown(): its captures.
  [[nodiscard]] const std::vector<std::string>& recorded() const;

  /// Sets a function that returns this rank's Python stack; a separate thread calls it on request.
  void set_stack_source(std::function<std::string()> source);

  /// Rank 0: the data that `hvdtune top` shows, as a JSON object; see docs/live.md. Never waits for
  /// an operation, but up to 20 ms for the coordinator to read its messages. Other ranks: an empty
  /// object.
  std::string status();
  /// Adds a line to status() for another part of the program; an empty text removes it.
  void note(const std::string& key, const std::string& text);
  /// Rank 0: lets other processes of this user ask questions over the abstract socket `name`.
  /// `identity`: the inside of a JSON object, which is put before the status. `command` answers
  /// questions that begin with "timeline-", on the server's thread; the text of its exceptions is
  /// sent to the client. If the name is taken, nobody can ask.
  void serve(const std::string& name, std::string identity,
             std::function<std::string(std::string_view)> command);

  /// Compares this rank's clock with rank 0's now and every 10 s. Each rank that needs readings
  /// calls it; rank 0's readings are zero.
  void start_clock();
  /// Makes one last comparison; waits for it until `deadline`, or until the job is over. False if
  /// there was none.
  bool stop_clock(Nanos deadline);
  /// The readings, except for the first `skip`, so that a caller can append the new ones. Any
  /// thread.
  [[nodiscard]] std::vector<ClockReading> clock_readings(std::size_t skip) const;

  [[nodiscard]] const std::vector<PeerInfo>& peers() const;
  /// By rank: the number of its host. All 0 on one host.
  [[nodiscard]] std::vector<int> hosts() const;
  /// CPUs that all ranks on this host may use together; the same number on all of them.
  [[nodiscard]] int host_cpus() const;
  /// Why the job cannot go on, or kOk.
  [[nodiscard]] Status state();
  [[nodiscard]] Gpus& gpus();
  /// Whether wire::RuntimeSettings::nccl_bypass_limit can have an effect. Known once batches use
  /// NCCL, if the limit is not 0 or the job is tuned. Any thread.
  [[nodiscard]] bool can_bypass_nccl() const;
  /// Whether a batch of this rank has used NCCL. Any thread.
  [[nodiscard]] bool uses_nccl() const;

 private:
  /// The parts that do the work: parts.h.
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace hvdtune
