#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/job/blocked_callers.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/job/process_sets.h"
#include "engine/operation/completions.h"
#include "engine/operation/registration.h"
#include "engine/submission/announcements.h"
#include "engine/submission/direct_rounds.h"
#include "engine/submission/handle_table.h"
#include "engine/submission/operation_table.h"
#include "engine/submission/submission.h"
#include "engine/submission/table_lock.h"

namespace hvdtune {

/// This rank's operations, from submit() until somebody has taken the result. Callers submit and
/// fetch; whoever makes progress looks up what the schedule names, and says how it ended.
///
/// Any thread may call any method: a mutex of its own, which is never held for long, guards the
/// state. What takes a DriveLock belongs to progress.
class Submissions {
 public:
  /// `drive_mutex`, `callers` and `completions` outlive it, and so does `job`. `process_sets`:
  /// global ranks of the sets 1, 2, …; `writing`: what the user says of how to write what others
  /// read.
  Submissions(const Job& job, std::vector<std::vector<int>> process_sets,
              const wire::RuntimeSettings& settings, Writing writing, DriveMutex& drive_mutex,
              BlockedCallers& callers, Completions& completions);

  // ---- callers; what Engine says of its methods of these names --------------------------------

  std::int64_t submit(const TensorOperation& wanted);
  /// `on_device`: what Gpus::accept() gave for tensors on a GPU.
  std::int64_t submit(Submission submission, std::shared_ptr<OnDevice> on_device);
  void submit(Submission submission, std::shared_ptr<OnDevice> on_device, OnDone on_done);
  void check(const wire::Request& request);
  std::int64_t submit_blocking(const TensorOperation& wanted);
  std::int64_t submit_blocking(Submission submission);
  /// Returns a short group that is announced: the caller must now make progress
  /// (`Drive::until`), as the coordinator's rank has not been woken. Otherwise null.
  OperationPtr submit_blocking(Submission submission, OnDone on_done);
  KnownOperation known(std::int64_t handle);
  void submit_again(std::span<const KnownOperation> operations,
                    std::span<const TensorMemory> memory, std::vector<std::int64_t>& handles);
  /// As Engine::HeldRings; release_rings() if hold_rings() was true, by the same thread.
  bool hold_rings();
  void release_rings(bool then_waits);

  /// Null for an unknown handle.
  OperationPtr find(std::int64_t handle);
  OperationPtr take(std::int64_t handle);
  bool is_done(std::int64_t handle);
  bool retire(std::int64_t handle);
  void retire(std::span<std::int64_t> handles);

  std::shared_ptr<SharedBlock> allocate_shared(std::size_t bytes);
  std::vector<int> process_set_ranks(std::uint32_t set);
  std::pair<int, int> place_in_set(std::uint32_t set);
  wire::RuntimeSettings settings();
  /// Why the job cannot go on, or kOk.
  Status state();
  /// Whether end() was called: one load.
  [[nodiscard]] bool over() const { return over_; }
  /// Names of what is in flight, in no order.
  std::vector<std::string> pending_names();
  /// Sends the coordinator, after what was announced before, an announcement that belongs to no
  /// operation. Does not ring.
  void announce(std::string_view bytes);

  // ---- progress ---------------------------------------------------------------------------------

  /// Read under a DriveLock; changed by the two below alone.
  [[nodiscard]] const ProcessSets& sets() const { return sets_; }
  void add_set(const DriveLock& lock, std::uint32_t set, std::vector<int> ranks);
  /// What waits in the set fails.
  void remove_set(const DriveLock& lock, std::uint32_t set);

  /// settings(), for whoever makes progress.
  [[nodiscard]] const wire::RuntimeSettings& applied(const DriveLock& /*held*/) const {
    return applied_;
  }
  void apply(const DriveLock& lock, const wire::RuntimeSettings& settings);

  /// Sends announcements that found the ring full; whether any was sent.
  bool flush(const DriveLock& lock);
  /// Whether some are left.
  bool has_backlog(const DriveLock& lock);

  /// The operations of a batch, and zeros where this rank has joined, into `batch`; how many
  /// tensors and groups the batch has for all ranks.
  std::uint64_t find_batch(const DriveLock& lock, const wire::Schedule& schedule,
                           std::vector<OperationPtr>& batch);
  /// The operation that an entry of the schedule is about; null if this rank has none.
  OperationPtr find_entry(const DriveLock& lock, std::uint32_t set, const wire::BatchEntry& entry);
  /// Operations, which have their status and results, are done: they are their submitters' again.
  void finish(const DriveLock& lock, const std::vector<OperationPtr>& batch);
  /// The same, and `batch` lets go of them: what nobody else holds is used again by retire().
  void finish_and_forget(const DriveLock& lock, std::vector<OperationPtr>& batch);
  /// Lets go of what finish() was told.
  void forget(const DriveLock& lock, std::vector<OperationPtr>& batch);
  /// The change of membership that an entry is about is done; `number`: its result.
  void finish_change(const DriveLock& lock, const wire::BatchEntry& entry, std::int64_t number);
  /// All ranks have joined: this one may submit to the whole job again.
  void end_join(const DriveLock& lock);
  /// The coordinator gives the slot to another tensor once all ranks are past its eviction. What
  /// this rank has announced by it and could not send yet goes by its description.
  void evict(const DriveLock& lock, wire::Slot slot);
  /// Everything in flight fails with `status`, and so does everything submitted later.
  void end(const DriveLock& lock, const Status& status);

 private:
  // submissions.cc
  void check(const TableLock& lock, const wire::Request& request) const;
  OperationPtr enter(const TableLock& lock, Submission submission, wire::Slot& known_slot);
  OperationPtr enter(const TableLock& lock, const TensorOperation& wanted, wire::Slot& known_slot);
  void add_handle(const TableLock& /*held*/, const OperationPtr& operation) {
    operation->handle = next_handle_++;
    handles_.add(operation->handle, operation);
  }
  /// Enters what comes with its memory and has no handle yet.
  OperationPtr enter_without_handle(const TableLock& lock, Submission submission,
                                    wire::Slot& known_slot);
  OperationPtr enter_calling(const TableLock& lock, Submission submission, OnDone on_done,
                             wire::Slot& known_slot);
  void announce_calling(const TableLock& lock, const OperationPtr& operation,
                        wire::Slot known_slot);
  void announce_entered(const TableLock& lock, const OperationPtr& operation, wire::Slot known_slot,
                        Nanos now);
  void announce(const TableLock& lock, const OperationPtr& operation, wire::Slot known_slot,
                Nanos now);
  [[nodiscard]] Urgency arrival_urgency(const TableLock& lock, const Operation& operation,
                                        wire::Slot known_slot);
  template <typename Submitted>
  std::int64_t submit_and_settle(Submitted&& submitted);
  void settle(const TableLock& lock, const OperationPtr& operation);
  // outcomes.cc
  void set_done(const OperationPtr& operation);
  void finish(const TableLock& lock, const OperationPtr& operation, bool executed);
  void finish_all(const TableLock& lock, const std::vector<OperationPtr>& batch);
  bool retire(const TableLock& lock, std::int64_t handle);

  const Job& job_;
  BlockedCallers& callers_;
  Completions& completions_;
  TableMutex mutex_;
  ProcessSets sets_;               // changed under the DriveLock and the TableLock
  wire::RuntimeSettings applied_;  // the same
  std::optional<Registration> registration_;
  OperationTable table_;
  HandleTable handles_;
  Announcements announcements_;
  DirectRounds direct_;
  std::int64_t next_handle_ = 1;
  wire::Ticket next_ticket_ = 1;
  bool joined_ = false;            // until all ranks have
  Status ended_;                   // set once, when no more operations are accepted
  std::atomic<bool> over_{false};  // ended_ is set
};

}  // namespace hvdtune
