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

/// This rank's operations, from submit() until the result is taken. Callers submit and fetch; the
/// thread that makes progress looks up the operations of schedule entries, and sets their outcome.
///
/// Any thread may call any method: its own mutex, which is never held for long, guards the state.
/// Methods with a DriveLock belong to progress.
class Submissions {
 public:
  /// `job`, `drive_mutex`, `callers` and `completions` outlive it. `process_sets`: global ranks of
  /// the sets 1, 2, …; `writing`: the user's setting of how to write data that others read.
  Submissions(const Job& job, std::vector<std::vector<int>> process_sets,
              const wire::RuntimeSettings& settings, Writing writing, DriveMutex& drive_mutex,
              BlockedCallers& callers, Completions& completions);

  // ---- for callers; see Engine's methods of the same names ------------------------------------

  std::int64_t submit(const TensorOperation& wanted);
  /// `on_device`: the result of Gpus::accept() for tensors on a GPU.
  std::int64_t submit(Submission submission, std::shared_ptr<OnDevice> on_device);
  void submit(Submission submission, std::shared_ptr<OnDevice> on_device, OnDone on_done);
  void check(const wire::Request& request);
  std::int64_t submit_blocking(const TensorOperation& wanted);
  std::int64_t submit_blocking(Submission submission);
  /// Returns the operation if it is a short group that was announced: the caller must now make
  /// progress (`Drive::until`), since the coordinator's rank has not been woken. Otherwise null.
  OperationPtr submit_blocking(Submission submission, OnDone on_done);
  KnownOperation known(std::int64_t handle);
  void submit_again(std::span<const KnownOperation> operations,
                    std::span<const TensorMemory> memory, std::vector<std::int64_t>& handles);
  /// See Engine::HeldRings. If hold_rings() was true, the same thread must call release_rings().
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
  /// Names of the operations in flight, unordered.
  std::vector<std::string> pending_names();
  /// Sends the coordinator an announcement that belongs to no operation, after all earlier ones.
  /// Does not ring.
  void announce(std::string_view bytes);

  // ---- progress ---------------------------------------------------------------------------------

  /// Read it under a DriveLock; only the two methods below change it.
  [[nodiscard]] const ProcessSets& sets() const { return sets_; }
  void add_set(const DriveLock& lock, std::uint32_t set, std::vector<int> ranks);
  /// Makes all operations that wait in the set fail.
  void remove_set(const DriveLock& lock, std::uint32_t set);

  /// settings(), for the thread that makes progress.
  [[nodiscard]] const wire::RuntimeSettings& applied(const DriveLock& /*held*/) const {
    return applied_;
  }
  void apply(const DriveLock& lock, const wire::RuntimeSettings& settings);

  /// Sends announcements that found the ring full; returns whether any was sent.
  bool flush(const DriveLock& lock);
  /// Whether any are left.
  bool has_backlog(const DriveLock& lock);

  /// Puts the operations of a batch into `batch`, with zeros if this rank has joined; returns how
  /// many tensors and groups the batch has for all ranks.
  std::uint64_t find_batch(const DriveLock& lock, const wire::Schedule& schedule,
                           std::vector<OperationPtr>& batch);
  /// The operation of an entry of the schedule; null if this rank has none.
  OperationPtr find_entry(const DriveLock& lock, std::uint32_t set, const wire::BatchEntry& entry);
  /// Marks operations, which have their status and results, as done: their submitters own them
  /// again.
  void finish(const DriveLock& lock, const std::vector<OperationPtr>& batch);
  /// The same, and releases them from `batch`: retire() reuses those without another owner.
  void finish_and_forget(const DriveLock& lock, std::vector<OperationPtr>& batch);
  /// Releases operations that finish() has marked.
  void forget(const DriveLock& lock, std::vector<OperationPtr>& batch);
  /// The change of membership of this entry is done; `number`: its result.
  void finish_change(const DriveLock& lock, const wire::BatchEntry& entry, std::int64_t number);
  /// All ranks have joined: this one may submit to the whole job again.
  void end_join(const DriveLock& lock);
  /// The coordinator gives the slot to another tensor once all ranks have passed its eviction. If
  /// this rank has an announcement with the slot that is not sent yet, it is sent with the
  /// description instead.
  void evict(const DriveLock& lock, wire::Slot slot);
  /// Makes everything in flight, and everything submitted later, fail with `status`.
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
  /// Enters a submission without giving it a handle.
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
