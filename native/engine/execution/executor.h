#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/memory/large_blocks.h"
#include "collective/communicator.h"
#include "collective/kernels/helper_pool.h"
#include "collective/shm/shm_registered.h"
#include "engine/execution/batch_cpu.h"
#include "engine/execution/staging.h"
#include "engine/job/process_sets.h"
#include "engine/operation/operation.h"
#include "observe/trace/timeline.h"

namespace hvdtune {

/// Runs scheduled batches on this rank: lays the tensors end to end, calls the process set's
/// communicator, and fills in the results. One thread at a time.
class Executor {
 public:
  /// `timeline` and `helpers`, which the communicators share, outlive it.
  Executor(const ProcessSets& sets, int rank, Timeline& timeline, HelperPool& helpers);

  /// Sets the object that copies GPU tensors into host memory; it outlives this. Before the first
  /// batch.
  void stage_with(Staging& staging) { staging_ = &staging; }

  /// Before the first batch, once. `communicators[set]` is null for sets that this rank is not in.
  void connect(std::vector<std::unique_ptr<Communicator>> communicators);

  /// Runs one batch: operations that may be fused, all of one kind and process set. Afterwards
  /// every operation has its status and results (but is not `done`: the caller sets that). Throws
  /// Error(kAborted) if the job is aborted in the middle; other failures are stored in the
  /// operations. `registered`: all ranks have its tensors in shared memory. `timed`: measure
  /// times().
  void run(const std::vector<OperationPtr>& batch, std::uint64_t serial, bool registered = false,
           bool timed = false);

  /// Times of the last batch that was run with `timed`.
  struct BatchTimes {
    Nanos begin = 0;
    PhaseTimes phases;  ///< 0 if nothing was packed
    Nanos waited = 0;   ///< for other ranks, in the operation
    /// CPU time of the thread, for this batch and the batches that it represents, and of the
    /// helpers since the last one.
    Nanos cpu = 0;
  };
  [[nodiscard]] const BatchTimes& times() const { return times_; }

  /// The communicator of a set that this rank is in.
  [[nodiscard]] Communicator& communicator(std::uint32_t set) { return *communicators_[set]; }

  void tune(const Tuning& tuning);

  /// All ranks add and remove sets at the same place in the schedule. `communicator` is null on
  /// ranks that are not in the set.
  void add_set(std::uint32_t set, std::unique_ptr<Communicator> communicator);
  /// `registered` reduces a set's tensors in shared memory; null on ranks that are not in the set.
  void add_registered_set(std::uint32_t set, std::unique_ptr<ShmRegistered> registered);
  void remove_set(std::uint32_t set);

  /// The batch that run() executes, for code that run() calls; null outside it.
  [[nodiscard]] const std::vector<OperationPtr>* running() const { return running_; }

 private:
  void run_timed(const std::vector<OperationPtr>& batch, bool registered);
  void run_as_kind(const std::vector<OperationPtr>& batch, bool registered);
  void run_staged(const std::vector<OperationPtr>& batch);
  void allreduce(const std::vector<OperationPtr>& batch);
  void allreduce_registered(const std::vector<OperationPtr>& batch);
  void allgather(const std::vector<OperationPtr>& batch);
  void broadcast(Operation& operation);
  void alltoall(Operation& operation);
  void reducescatter(const std::vector<OperationPtr>& batch);

  void trace_start(const std::vector<OperationPtr>& batch);
  void trace_phases(const PhaseTimes& times);
  void trace_exchange();
  void trace_activity(const char* label);
  void trace_end(const std::vector<OperationPtr>& batch, std::uint64_t serial, bool ok);

  KeepLargeBlocks keep_blocks_;  // results of a batch reuse the memory of earlier ones
  const ProcessSets& sets_;
  int rank_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<ShmRegistered>> registered_;
  Timeline& timeline_;
  Staging* staging_ = nullptr;
  Tuning tuning_;

  // The batch being run.
  const std::vector<OperationPtr>* running_ = nullptr;
  Communicator* communicator_ = nullptr;
  std::vector<std::string> rows_;  // timeline rows of its tensors; empty when not recording
  OpKind kind_ = OpKind::kAllreduce;
  Nanos begin_ = 0;
  BatchTimes times_;
  BatchCpu cpu_;
  HelperPool& helpers_;
  bool timing_ = false;  // the last batch was run with `timed`
};

}  // namespace hvdtune
