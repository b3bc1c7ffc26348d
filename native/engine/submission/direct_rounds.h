#pragma once

#include <cstddef>
#include <optional>

#include "collective/communicator.h"
#include "collective/shm/cache_distance.h"
#include "engine/job/drive_lock.h"
#include "engine/job/job.h"
#include "engine/job/process_sets.h"
#include "engine/operation/registration.h"
#include "engine/submission/direct_data.h"
#include "engine/submission/table_lock.h"

namespace hvdtune {

/// Small operations that every member waits for; they bypass the coordinator. Each member publishes
/// its data (direct_data.h), and arrives (transport/arena/slot_round.h); when all have arrived,
/// each computes its own result, or they share the work (shared_sum.h). No member sleeps, so none
/// need be woken: a member that has waited too long announces the tensor after all, and then all
/// others do the same. The coordinator then handles stalls, mismatches and joins as usual.
class DirectRounds {
 public:
  /// All references outlive it. `registration` and `settings` are read under the TableLock.
  /// `writing`: the user's setting of how to write data that others read.
  DirectRounds(const Job& job, const ProcessSets& sets,
               const std::optional<Registration>& registration,
               const wire::RuntimeSettings& settings, Writing writing, DriveMutex& drive_mutex);

  /// Publishes the operation's data and arrives in the current round of its slot. Returns the
  /// round; null: the caller must announce the operation.
  const SlotRound* arrive(const TableLock& lock, Operation& operation);

  /// Waits until settle() has something to do: the round is complete or overruled, or patience
  /// ends. Returns when it began. The caller must hold no lock.
  Nanos wait(const Operation& operation, const SlotRound& round) const;

  /// Decides about an operation that has arrived. True: the round is complete, and the operation
  /// has its result. False: it has left the round, and the caller must announce it.
  bool settle(const TableLock& lock, Operation& operation);
  /// The same if its slot is evicted: the slot's next tensor finds a round without it.
  bool leave(const TableLock& lock, Operation& operation);
  /// The same if the job has ended. If not all others have arrived, returns false, and the
  /// operation stays in the round.
  bool finish_if_complete(const TableLock& lock, Operation& operation);

 private:
  [[nodiscard]] std::size_t members_of(const Operation& operation) const {
    return sets_.ranks(operation.request.process_set).size();
  }
  [[nodiscard]] std::size_t limit(OpKind kind, std::size_t members) const;
  [[nodiscard]] bool shares_sums(std::size_t members, std::size_t bytes) const;
  [[nodiscard]] CopyKind writing(std::size_t bytes);
  void give_up(Operation& operation);
  void finish(Operation& operation);

  const Job& job_;
  const ProcessSets& sets_;
  const std::optional<Registration>& registration_;
  const wire::RuntimeSettings& settings_;
  DriveMutex& drive_mutex_;
  DirectData data_;
  CacheDistance distance_;  // of all ranks of the job; also used under the DriveLock
  CopyKind writing_ = CopyKind::kCached;
};

}  // namespace hvdtune
