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

/// Operations that every member waits for, if they are not large: they do not go by way of the
/// coordinator. Each member publishes its data (direct_data.h), and arrives
/// (transport/arena/slot_round.h); when all have, each makes its result of them for itself, or they
/// share the work (shared_sum.h). Nobody is woken, because nobody sleeps: whoever has waited too
/// long announces the tensor after all, and so does everybody as soon as one has. Stalls,
/// mismatches and joins are then dealt with as ever.
class DirectRounds {
 public:
  /// All references outlive it. `registration` and `settings` are read under the TableLock.
  /// `writing`: what the user says of how to write what others read.
  DirectRounds(const Job& job, const ProcessSets& sets,
               const std::optional<Registration>& registration,
               const wire::RuntimeSettings& settings, Writing writing, DriveMutex& drive_mutex);

  /// Publishes the operation's data and arrives in the current round of its slot, which is
  /// returned; null: announce the operation.
  const SlotRound* arrive(const TableLock& lock, Operation& operation);

  /// Waits until settle() has something to do: the round is complete or overruled, or patience
  /// ends. Returns when it began. Its caller holds no lock.
  Nanos wait(const Operation& operation, const SlotRound& round) const;

  /// Of an operation that has arrived. True: the round is complete, and the operation has its
  /// result. False: it has left the round, and is to be announced.
  bool settle(const TableLock& lock, Operation& operation);
  /// The same if its slot is evicted: the slot's next tensor finds a round without it.
  bool leave(const TableLock& lock, Operation& operation);
  /// The same if the job has ended: false, and it stays, if the others did not all arrive before.
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
  CacheDistance distance_;  // of the whole job's members; asked under the DriveLock, too
  CopyKind writing_ = CopyKind::kCached;
};

}  // namespace hvdtune
