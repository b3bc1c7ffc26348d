// Membership: the part of Coordinator that handles ranks that join, and added and removed process
// sets.
#include <algorithm>

#include "base/check.h"
#include "engine/coordination/coordinator.h"
#include "transport/arena/arena.h"

namespace hvdtune {
namespace {

/// Why these cannot be the ranks of a process set, or empty.
std::string wrong_ranks(const std::vector<std::int32_t>& ranks, std::size_t size) {
  const std::string accepted =
      "; different ranks from 0 to " + std::to_string(size - 1) + " are accepted.";
  if (ranks.empty()) return "A process set needs at least one rank" + accepted;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string rank =
        "process set " + wire::ranks_text(ranks) + ": rank " + std::to_string(ranks[i]);
    if (ranks[i] < 0 || static_cast<std::size_t>(ranks[i]) >= size) {
      return rank + " does not exist" + accepted;
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) return rank + " is given twice" + accepted;
  }
  return {};
}

}  // namespace

/// The rank contributes zeros from here on: tensors that waited only for it can run.
void Coordinator::join(int rank, const std::string& name, Nanos time) {
  HVD_CHECK(!joined_.contains(rank));  // a second join is refused on the rank itself
  joined_.add(rank, time);
  last_announced_[static_cast<std::size_t>(rank)] = {nullptr, name, time};
  std::vector<TensorEntry*> waiting;
  for (const auto& [key, entry] : entries_) {
    if (entry->announced > 0 && !entry->ready && entry->description.process_set == 0) {
      waiting.push_back(entry.get());
    }
  }
  // The table has no order; the order of announcements is as good as any, and reproducible.
  std::sort(waiting.begin(), waiting.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->first_time < b->first_time;
  });
  const Nanos now = monotonic_now();
  for (TensorEntry* entry : waiting) complete_if_all_there(*entry, now);
  if (joined_.all()) changes_.push_back({OpKind::kJoin, name, {}});
}

/// Tensors that are ready belong to the old membership, so they are scheduled first.
void Coordinator::change_membership(std::vector<wire::Schedule>& out) {
  if (changes_.empty()) return;
  close_all(wire::CloseReason::kBlocked, out);
  while (!changes_.empty()) {
    const Change& change = changes_.front();
    if (change.kind == OpKind::kJoin) {
      confirm(wire::ScheduleType::kJoined, change, 0);
      joined_.clear();
    } else if (change.kind == OpKind::kRemoveProcessSet) {
      remove_set(change);
    } else if (!add_set(change)) {
      break;
    }
    changes_.pop_front();
  }
  flush_immediate(out);
}

/// False while a slow rank still uses the next number.
bool Coordinator::add_set(const Change& change) {
  if (!removed_.empty()) return false;
  std::string why = wrong_ranks(change.ranks, sets_.ranks(0).size());
  const std::vector<int> ranks(change.ranks.begin(), change.ranks.end());
  const auto same = sets_.find(ranks);
  if (why.empty() && same) {
    why = "duplicate process set: " + wire::ranks_text(change.ranks) + " is process set " +
          std::to_string(*same) + " already.";
  }
  if (why.empty() && free_numbers_.empty() && sets_.numbers() == kMaxProcessSets) {
    why = "there are " + std::to_string(kMaxProcessSets) +
          " process sets, as many as can exist at once; remove one first.";
  }
  if (!why.empty()) {
    refuse(change, why);
    return true;
  }
  auto number = static_cast<std::uint32_t>(sets_.numbers());
  if (!free_numbers_.empty()) {
    number = free_numbers_.front();
    free_numbers_.pop_front();
  }
  sets_.add(number, ranks);
  confirm(wire::ScheduleType::kAddProcessSet, change, number);
  return true;
}

/// Operations that wait in the set are dropped here; every rank fails its own.
void Coordinator::remove_set(const Change& change) {
  const auto set = static_cast<std::uint32_t>(change.ranks.front());
  if (change.ranks.front() <= 0 || !sets_.exists(set)) {
    return refuse(change, "process set " + wire::ranks_text(change.ranks) +
                              " does not exist or has not been registered.");
  }
  std::vector<TensorEntry*> gone;
  for (const auto& [key, entry] : entries_) {
    if (entry->description.process_set == set) gone.push_back(entry.get());
  }
  for (TensorEntry* entry : gone) {
    if (entry->slot != wire::kNoSlot) {
      evict(*entry);
    } else {
      forget(*entry);
    }
  }
  sets_.remove(set);
  removed_.add(set);
  confirm(wire::ScheduleType::kRemoveProcessSet, change, set);
}

void Coordinator::refuse(const Change& change, const std::string& why) {
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kReject;
  schedule.entries.push_back({wire::kNoSlot, change.name, {}});
  schedule.status = {ErrorKind::kInvalidArgument, why};
  immediate_.push_back(std::move(schedule));
}

void Coordinator::confirm(wire::ScheduleType type, const Change& change, std::uint32_t set) {
  wire::Schedule schedule;
  schedule.type = type;
  schedule.process_set = set;
  schedule.rank = joined_.last();
  schedule.ranks = change.ranks;
  schedule.entries.push_back({wire::kNoSlot, change.name, {}});
  immediate_.push_back(std::move(schedule));
}

std::vector<std::uint32_t> Coordinator::release_sets(std::uint64_t position) {
  std::vector<std::uint32_t> released = removed_.release(position);
  free_numbers_.insert(free_numbers_.end(), released.begin(), released.end());
  return released;
}

}  // namespace hvdtune
