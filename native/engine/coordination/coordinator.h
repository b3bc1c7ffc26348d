#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/coordination/awaiting_release.h"
#include "engine/coordination/coordinator_options.h"
#include "engine/coordination/fusion.h"
#include "engine/coordination/joined_ranks.h"
#include "engine/job/process_sets.h"
#include "engine/operation/tensor_entry.h"
#include "observe/status/step_log.h"
#include "wire/messages.h"

namespace hvdtune {

/// What the coordinator reports of its work; Coordination listens. Called by whoever makes
/// progress, in order; must not call back.
class CoordinatorObserver {
 public:
  virtual ~CoordinatorObserver() = default;
  virtual void on_first_ready(const TensorEntry& entry, Nanos time) = 0;
  virtual void on_rank_ready(const TensorEntry& entry, int rank, Nanos time) = 0;
  virtual void on_all_ready(const TensorEntry& entry, Nanos time) = 0;
  /// The tensor's round is complete, but so many of its ranks never announced it.
  virtual void on_absent(const TensorEntry& entry, std::size_t ranks) = 0;
  /// A batch was closed, the first of whose tensors was ready at `first_ready`.
  virtual void on_batch(std::uint64_t serial, Nanos closed, Nanos first_ready) = 0;
};

/// Decides what all ranks do next. Pure bookkeeping: announcements in, schedule entries out; it
/// knows no transport and no clock but the times it is given. One a job, on rank 0; one thread at
/// a time.
///
/// A tensor is *ready* once every member of its process set has announced it, or has joined. Ready
/// tensors are collected, and leave in batches (see wire::CloseReason). Process sets never wait for
/// each other. What changes the membership itself (all ranks have joined, a process set comes or
/// goes) is scheduled behind everything that was ready before.
class Coordinator {
 public:
  /// `sets[id]`: the global ranks of each process set, ascending; set 0 has all ranks.
  Coordinator(CoordinatorOptions options, std::vector<std::vector<int>> sets,
              wire::RuntimeSettings settings);

  void set_observer(CoordinatorObserver* observer) { observer_ = observer; }

  /// Takes one announcement of `rank`. kShutdown and kStackReply are not for it.
  void announce(int rank, wire::Announce announce);
  /// The same for a tensor with a slot; `now`: the time, as all the caller reads at once may have.
  void announce(int rank, const wire::AnnouncedSlot& announced, Nanos now);

  /// Appends to `out` what is to be done now. `blocked_on[rank]` as in engine/job/blocked.h.
  void schedule(Nanos now, const std::vector<std::uint64_t>& blocked_on,
                std::vector<wire::Schedule>& out);

  /// When schedule() is to be called again even if nothing is announced; kForever = never.
  [[nodiscard]] Nanos deadline() const;
  [[nodiscard]] bool has_ready() const { return !ready_.empty(); }

  /// New settings from the next schedule() on. Returns their epoch.
  std::uint64_t change_settings(const SettingsChange& change);
  /// With the next schedule(), as Engine::interrupt(). Lower numbers than before are none.
  void interrupt(std::uint64_t number);
  [[nodiscard]] const wire::RuntimeSettings& settings() const { return settings_; }

  /// Every rank has come past the schedule entries before `position`, and its announcements made
  /// until then are processed: evicted slots may be used again. Returns them; the caller numbers
  /// the schedule and resets what it keeps by slot.
  std::vector<wire::Slot> release_evicted(std::uint64_t position);
  /// The oldest eviction handed out and not yet reported ends before this schedule position.
  void eviction_published(std::uint64_t position) { evicted_.published(position); }
  /// The same for process sets that were removed: their numbers, whose barriers nobody uses any
  /// more; the caller resets those.
  std::vector<std::uint32_t> release_sets(std::uint64_t position);
  void removal_published(std::uint64_t position) { removed_.published(position); }
  /// Something waits for the slowest rank to come past it.
  [[nodiscard]] bool awaits_release() const { return !evicted_.empty() || !removed_.empty(); }

  /// Tensors that some ranks have announced and others not, for the stall check. Unordered.
  [[nodiscard]] std::vector<const TensorEntry*> incomplete() const;
  /// Global ranks that an incomplete tensor waits for.
  [[nodiscard]] std::vector<int> missing(const TensorEntry& entry) const;
  [[nodiscard]] std::size_t joined() const { return joined_.count(); }
  /// Name of the last tensor that `rank` announced, and when; empty before the first.
  [[nodiscard]] const std::string& last_announced(int rank, Nanos& time) const;

  /// Tensors and groups that some rank waits for: announced, and not scheduled yet.
  [[nodiscard]] std::size_t open() const { return open_; }
  /// Those of them that nobody is missing from.
  [[nodiscard]] std::size_t ready() const { return ready_.size(); }
  /// How many have been put into batches so far.
  [[nodiscard]] std::uint64_t scheduled() const { return scheduled_; }
  /// Batches so far, and what they hold in the fusion buffer.
  [[nodiscard]] std::uint64_t batches() const { return next_batch_; }
  [[nodiscard]] std::int64_t bytes_scheduled() const { return bytes_scheduled_; }

  StepLog& steps() { return steps_; }
  [[nodiscard]] const StepLog& steps() const { return steps_; }

 private:
  struct Evicted {
    wire::Slot slot;
    wire::Request description;
  };
  /// A change of membership that all ranks have asked for: what they wait for, by name.
  struct Change {
    OpKind kind;
    std::string name;
    std::vector<std::int32_t> ranks;
  };
  struct LastAnnounced {
    const TensorEntry* entry = nullptr;  // while it exists
    std::string name;                    // then
    Nanos time = 0;
  };

  TensorEntry* entry_of(wire::Announce& announce);
  void arrive(TensorEntry& entry, int rank, const wire::AnnouncedSlot& announced);
  void complete_if_all_there(TensorEntry& entry, Nanos now);
  void complete(TensorEntry& entry, Nanos now);
  void set_ready(TensorEntry& entry, Nanos now);
  std::string agree(TensorEntry& entry);
  void reject(TensorEntry& entry, const std::string& why);
  void assign_slot(TensorEntry& entry);
  /// False when all are in flight.
  bool evict_least_recent();
  void evict(TensorEntry& entry);
  void forget(TensorEntry& entry);
  void finish_round(TensorEntry& entry);

  void join(int rank, const std::string& name);
  void change_membership(std::vector<wire::Schedule>& out);
  bool add_set(const Change& change);
  void remove_set(const Change& change);
  void refuse(const Change& change, const std::string& why);
  void confirm(wire::ScheduleType type, const Change& change, std::uint32_t set);

  [[nodiscard]] bool somebody_blocked(const std::vector<std::uint64_t>& blocked_on) const;
  [[nodiscard]] bool in_this_step(const TensorEntry& entry) const;
  [[nodiscard]] bool step_complete() const;
  void log_step(TensorEntry& entry, Nanos now);
  void close_all(wire::CloseReason reason, std::vector<wire::Schedule>& out);
  void close_full(std::vector<wire::Schedule>& out);
  void take_batch(const FusionPlan& plan, wire::CloseReason reason,
                  std::vector<wire::Schedule>& out);
  void flush_immediate(std::vector<wire::Schedule>& out);
  [[nodiscard]] std::int64_t effective_threshold() const;

  CoordinatorOptions options_;
  ProcessSets sets_;
  JoinedRanks joined_;
  std::deque<Change> changes_;
  AwaitingRelease<std::uint32_t> removed_;  // numbers of sets
  std::deque<std::uint32_t> free_numbers_;  // of removed sets, in the order of their removal
  wire::RuntimeSettings settings_;
  CoordinatorObserver* observer_ = nullptr;

  // Entries by (process set, name); stable addresses. Those with a slot stay between rounds.
  std::unordered_map<std::string, std::unique_ptr<TensorEntry>> entries_;
  std::vector<TensorEntry*> by_slot_;
  std::vector<wire::Slot> free_slots_;
  std::uint32_t used_slots_ = 0;
  std::list<TensorEntry*> recency_;  // entries with a slot, least recently used first
  AwaitingRelease<Evicted> evicted_;
  bool eviction_warned_ = false;

  std::vector<TensorEntry*> ready_;  // in the order they became ready
  std::int64_t ready_bytes_ = 0;     // their sums of what fusion needs to know
  std::size_t ready_message_bytes_ = 0;
  std::int64_t ready_step_tensors_ = 0;    // of those that count for steps
  std::vector<wire::Schedule> immediate_;  // what comes before the next batch
  Nanos first_ready_ = kForever;
  std::uint64_t interrupt_ = 0;  // the last
  std::uint64_t next_batch_ = 0;
  std::int64_t bytes_scheduled_ = 0;
  std::size_t open_ = 0;
  std::uint64_t scheduled_ = 0;
  std::vector<LastAnnounced> last_announced_;
  StepLog steps_;
};

}  // namespace hvdtune
