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

/// Receives reports of the coordinator's work; Coordination implements it. The thread that makes
/// progress calls it, in order; it must not call back.
class CoordinatorObserver {
 public:
  virtual ~CoordinatorObserver() = default;
  virtual void on_first_ready(const TensorEntry& entry, Nanos time) = 0;
  virtual void on_rank_ready(const TensorEntry& entry, int rank, Nanos time) = 0;
  virtual void on_all_ready(const TensorEntry& entry, Nanos time) = 0;
  /// The tensor's round is complete, but `ranks` of its ranks never announced it.
  virtual void on_absent(const TensorEntry& entry, std::size_t ranks) = 0;
  /// A batch was closed; its first tensor was ready at `first_ready`.
  virtual void on_batch(std::uint64_t serial, Nanos closed, Nanos first_ready) = 0;
};

/// Decides what all ranks do next. Pure bookkeeping: announcements in, schedule entries out; it
/// knows no transport, and no clock except the times that it is given. One per job, on rank 0; one
/// thread at a time.
///
/// A tensor is *ready* once every member of its process set has announced it, or has joined. Ready
/// tensors are collected, and scheduled in batches (see wire::CloseReason). Process sets never wait
/// for each other. Changes of the membership (all ranks have joined, a process set is added or
/// removed) are scheduled after everything that was ready before.
class Coordinator {
 public:
  /// `sets[id]`: the global ranks of each process set, ascending; set 0 has all ranks.
  Coordinator(CoordinatorOptions options, std::vector<std::vector<int>> sets,
              wire::RuntimeSettings settings);

  void set_observer(CoordinatorObserver* observer) { observer_ = observer; }

  /// Takes one announcement of `rank`, except kShutdown and kStackReply.
  void announce(int rank, wire::Announce announce);
  /// The same for a tensor with a slot; `now`: the time, which may be the same for all that the
  /// caller reads at once.
  void announce(int rank, const wire::AnnouncedSlot& announced, Nanos now);

  /// Appends the entries that are due now to `out`. `blocked_on[rank]` as in engine/job/blocked.h.
  void schedule(Nanos now, const std::vector<std::uint64_t>& blocked_on,
                std::vector<wire::Schedule>& out);

  /// When schedule() must be called again even if nothing is announced; kForever = never.
  [[nodiscard]] Nanos deadline() const;
  [[nodiscard]] bool has_ready() const { return !ready_.empty(); }

  /// New settings from the next schedule() on. Returns their epoch.
  std::uint64_t change_settings(const SettingsChange& change);
  /// Takes effect with the next schedule(); see Engine::interrupt(). A number that is not higher
  /// than the last has no effect.
  void interrupt(std::uint64_t number);
  [[nodiscard]] const wire::RuntimeSettings& settings() const { return settings_; }

  /// Call it once every rank has passed the schedule entries before `position`, and its
  /// announcements made until then are processed. Returns the evicted slots that may be reused; the
  /// caller counts positions, and resets its own state of these slots.
  std::vector<wire::Slot> release_evicted(std::uint64_t position);
  /// Reports that the entry of the oldest eviction not yet reported ends before this position of
  /// the schedule.
  void eviction_published(std::uint64_t position) { evicted_.published(position); }
  /// Like release_evicted(), for removed process sets: returns their numbers. Nobody uses their
  /// barriers any more; the caller resets them.
  std::vector<std::uint32_t> release_sets(std::uint64_t position);
  void removal_published(std::uint64_t position) { removed_.published(position); }
  /// Whether a slot or set waits until the slowest rank has passed its entry.
  [[nodiscard]] bool awaits_release() const { return !evicted_.empty() || !removed_.empty(); }

  /// Tensors that some ranks have announced and others not, for the stall check. Unordered.
  [[nodiscard]] std::vector<const TensorEntry*> incomplete() const;
  /// Global ranks that an incomplete tensor waits for.
  [[nodiscard]] std::vector<int> missing(const TensorEntry& entry) const;
  [[nodiscard]] std::size_t joined() const { return joined_.count(); }
  /// Name of the last tensor that `rank` announced, and when; empty before the first.
  [[nodiscard]] const std::string& last_announced(int rank, Nanos& time) const;

  /// Number of tensors and groups that are announced, but not scheduled yet.
  [[nodiscard]] std::size_t open() const { return open_; }
  /// Number of those that all ranks have announced.
  [[nodiscard]] std::size_t ready() const { return ready_.size(); }
  /// Number of tensors and groups put into batches so far.
  [[nodiscard]] std::uint64_t scheduled() const { return scheduled_; }
  /// Batches so far, and their bytes in the fusion buffer.
  [[nodiscard]] std::uint64_t batches() const { return next_batch_; }
  [[nodiscard]] std::int64_t bytes_scheduled() const { return bytes_scheduled_; }

  StepLog& steps() { return steps_; }
  [[nodiscard]] const StepLog& steps() const { return steps_; }

 private:
  struct Evicted {
    wire::Slot slot;
    wire::Request description;
  };
  /// A change of membership that all ranks have requested, and whose entry they wait for by name.
  struct Change {
    OpKind kind;
    std::string name;
    std::vector<std::int32_t> ranks;
  };
  struct LastAnnounced {
    const TensorEntry* entry = nullptr;  // while there is one
    std::string name;                    // afterwards
    Nanos time = 0;
  };

  TensorEntry* entry_of(wire::Announce& announce);
  void arrive(TensorEntry& entry, int rank, const wire::AnnouncedSlot& announced);
  void complete_if_all_there(TensorEntry& entry, Nanos now);
  void complete(TensorEntry& entry, Nanos now);
  void set_ready(TensorEntry& entry, Nanos now);
  [[nodiscard]] int first_announcer(const TensorEntry& entry) const;
  [[nodiscard]] std::string refusal(const TensorEntry& entry, int first) const;
  void reject(TensorEntry& entry, const std::string& why);
  void assign_slot(TensorEntry& entry);
  /// False if all are in flight.
  bool evict_least_recent();
  void evict(TensorEntry& entry);
  void forget(TensorEntry& entry);
  void finish_round(TensorEntry& entry);

  void join(int rank, const std::string& name, Nanos time);
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
  std::int64_t ready_bytes_ = 0;     // sums over ready_, for fusion
  std::size_t ready_message_bytes_ = 0;
  std::int64_t ready_step_tensors_ = 0;    // of those that count for steps
  std::vector<wire::Schedule> immediate_;  // entries before the next batch
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
