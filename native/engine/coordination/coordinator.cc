#include "engine/coordination/coordinator.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "engine/coordination/agreement.h"
#include "engine/coordination/fusion.h"
#include "engine/job/blocked.h"
#include "transport/arena/arena.h"

namespace hvdtune {
namespace {

std::string key_of(std::uint32_t set, const std::string& name) {
  return std::to_string(set) + ':' + name;
}

/// The step log's identity of a tensor: automatic names are never used again.
std::string identity_of(const wire::Request& request) {
  if (request.cacheable) return request.name;
  std::string identity = "unnamed";
  for (const wire::TensorSpec& tensor : request.tensors) {
    identity += ' ';
    identity += dtype_name(tensor.dtype) + wire::shape_text(tensor.shape);
  }
  return identity;
}

/// Extends the run that ends with the previous slot, if there is one.
void add_slot(std::vector<wire::BatchEntry>& entries, const TensorEntry& entry) {
  if (!entries.empty() && entry.absent.empty()) {
    wire::BatchEntry& last = entries.back();
    const bool nothing_else = last.name.empty() && !last.description;
    if (nothing_else && last.slot + last.run == entry.slot && last.run < wire::kMaxRun) {
      ++last.run;
      return;
    }
  }
  entries.push_back({entry.slot, {}, {}});
}

bool about_sets(OpKind kind) {
  return kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet;
}

std::string not_with_join(const wire::Request& request, const std::vector<int>& joined) {
  std::string ranks;
  for (const int rank : joined) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return std::string(operation_label(request)) + " is not supported with Join at this time: rank" +
         (joined.size() == 1 ? " " : "s ") + ranks + " joined without taking part in " +
         request.name + "; until all ranks have joined, only allreduce goes on.";
}

/// The description of a rank that has announced the tensor: a variant, or else the entry's own.
const wire::Request& meant_by(const TensorEntry& entry, int rank) {
  const auto found = std::find_if(entry.variants.begin(), entry.variants.end(),
                                  [rank](const auto& variant) { return variant.first == rank; });
  return found == entry.variants.end() ? entry.description : found->second;
}

bool counts_for_steps(const wire::Request& request) {
  return request.process_set == 0 && request.kind == OpKind::kAllreduce;
}

std::int64_t step_tensors(const wire::Request& request) {
  return counts_for_steps(request) ? static_cast<std::int64_t>(request.tensors.size()) : 0;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, std::vector<std::vector<int>> sets,
                         wire::RuntimeSettings settings)
    : options_(options),
      sets_(std::move(sets)),
      joined_(sets_.ranks(0).size()),
      settings_(settings),
      last_announced_(sets_.ranks(0).size()) {
  options_.cache_capacity = std::min(options_.cache_capacity, kMaxSlots / 2);
}

// ---- announcements ------------------------------------------------------------------------------

/// Null for a tensor of a process set that was removed meanwhile: its rank makes it fail by itself.
TensorEntry* Coordinator::entry_of(wire::Announce& announce) {
  if (announce.type == wire::AnnounceType::kSlot) {
    if (announce.slot < by_slot_.size() && by_slot_[announce.slot] != nullptr) {
      return by_slot_[announce.slot];
    }
    // Announced before that rank learned of the eviction.
    const Evicted* old = evicted_.find([&](const Evicted& e) { return e.slot == announce.slot; });
    HVD_CHECK(old != nullptr);
    // The rank means this description, whatever others announce under the name by now.
    announce.request = old->description;
    announce.registered = false;  // only the removed slot was
  }
  const wire::Request& description = *announce.request;
  if (!sets_.exists(description.process_set)) return nullptr;
  auto& entry = entries_[key_of(description.process_set, description.name)];
  if (!entry) {
    entry = std::make_unique<TensorEntry>();
    entry->key = key_of(description.process_set, description.name);
    entry->description = description;
    entry->described_by = -1;
    entry->members = sets_.ranks(description.process_set).size();
  }
  return entry.get();
}

void Coordinator::announce(int rank, wire::Announce announce) {
  if (announce.request && announce.request->kind == OpKind::kJoin) {
    return join(rank, announce.request->name, announce.time);
  }
  TensorEntry* entry = entry_of(announce);
  if (entry == nullptr) return;
  if (entry->described_by < 0) entry->described_by = rank;
  if (announce.request && *announce.request != entry->description) {
    entry->variants.emplace_back(rank, std::move(*announce.request));
  }
  arrive(*entry, rank, {announce.slot, announce.ticket, announce.time, announce.registered});
  complete_if_all_there(*entry, monotonic_now());
}

void Coordinator::announce(int rank, const wire::AnnouncedSlot& announced, Nanos now) {
  const wire::Slot slot = announced.slot;
  if (slot >= by_slot_.size() || by_slot_[slot] == nullptr) {
    wire::Announce evicted;
    evicted.slot = slot;
    evicted.ticket = announced.ticket;
    evicted.time = announced.time;
    return announce(rank, std::move(evicted));
  }
  arrive(*by_slot_[slot], rank, announced);
  // `now` was read before the announcements, and the last one read need not be the latest.
  complete_if_all_there(*by_slot_[slot], std::max(now, by_slot_[slot]->last_time));
}

void Coordinator::arrive(TensorEntry& entry, int rank, const wire::AnnouncedSlot& announced) {
  const auto at = static_cast<std::size_t>(rank);
  if (entry.announced == 0) {
    entry.by.assign(last_announced_.size(), false);
    entry.tickets.assign(last_announced_.size(), 0);
    entry.times.assign(last_announced_.size(), 0);
    entry.first_time = announced.time;
    entry.last_time = 0;
    ++open_;
    if (observer_ != nullptr) observer_->on_first_ready(entry, announced.time);
  }
  HVD_CHECK(!entry.by[at]);  // duplicates are refused on the rank itself
  entry.by[at] = true;
  entry.tickets[at] = announced.ticket;
  entry.times[at] = announced.time;
  ++entry.announced;
  if (announced.registered) ++entry.registered;
  if (announced.time >= entry.last_time) {
    entry.last_time = announced.time;
    entry.last_rank = rank;
  }
  last_announced_[at].entry = &entry;
  last_announced_[at].time = announced.time;
  if (observer_ != nullptr) observer_->on_rank_ready(entry, rank, announced.time);
}

std::vector<int> Coordinator::missing(const TensorEntry& entry) const {
  std::vector<int> ranks;
  const std::uint32_t set = entry.description.process_set;
  for (const int rank : sets_.ranks(set)) {
    const bool joined = set == 0 && joined_.contains(rank);
    if (!entry.by[static_cast<std::size_t>(rank)] && !joined) ranks.push_back(rank);
  }
  return ranks;
}

void Coordinator::complete_if_all_there(TensorEntry& entry, Nanos now) {
  if (entry.announced < entry.members) {
    if (joined_.count() == 0 || !missing(entry).empty()) return;
    for (const int rank : sets_.ranks(entry.description.process_set)) {
      if (!entry.by[static_cast<std::size_t>(rank)]) entry.absent.push_back(rank);
    }
    if (observer_ != nullptr) observer_->on_absent(entry, entry.absent.size());
  }
  complete(entry, now);
}

/// The first rank of the set that has announced the tensor: the others are compared with this one.
int Coordinator::first_announcer(const TensorEntry& entry) const {
  const std::vector<int>& ranks = sets_.ranks(entry.description.process_set);
  const auto first = std::find_if(ranks.begin(), ranks.end(), [&entry](int rank) {
    return entry.by[static_cast<std::size_t>(rank)];
  });
  HVD_CHECK(first != ranks.end());
  return *first;
}

/// Why the tensor cannot be run as the ranks have announced it; empty if it can.
std::string Coordinator::refusal(const TensorEntry& entry, int first) const {
  const wire::Request& wanted = meant_by(entry, first);
  if (!entry.variants.empty()) {
    for (const int rank : sets_.ranks(entry.description.process_set)) {
      if (!entry.by[static_cast<std::size_t>(rank)]) continue;
      std::string why = disagreement(wanted, first, meant_by(entry, rank), rank);
      if (!why.empty()) return why;
    }
  }
  std::string why = unusable(wanted);
  if (!why.empty()) return why;
  if (entry.absent.empty() || wanted.kind == OpKind::kAllreduce) return {};
  return not_with_join(wanted, entry.absent);
}

/// All ranks have announced: the tensor is ready, or it cannot be run. In the second case the entry
/// keeps the description that the ranks go on to mean by its slot.
void Coordinator::complete(TensorEntry& entry, Nanos now) {
  if (observer_ != nullptr) observer_->on_all_ready(entry, now);
  const bool as_before = entry.slot != wire::kNoSlot && entry.variants.empty();
  if (as_before && entry.absent.empty()) return set_ready(entry, now);
  const int first = first_announcer(entry);
  if (const std::string why = refusal(entry, first); !why.empty()) return reject(entry, why);
  if (!entry.variants.empty()) {
    entry.description = meant_by(entry, first);
    entry.described_by = first;
    entry.recorded_in = 0;
  }
  const wire::Request& description = entry.description;
  if (about_sets(description.kind)) {
    changes_.push_back({description.kind, description.name, description.ranks});
    return forget(entry);
  }
  set_ready(entry, now);
}

void Coordinator::set_ready(TensorEntry& entry, Nanos now) {
  entry.ready = true;
  entry.ready_time = now;
  if (ready_.empty()) first_ready_ = now;
  ready_.push_back(&entry);
  measure_for_fusion(entry);
  ready_bytes_ += entry.fused_bytes;
  ready_message_bytes_ += entry.message_bytes;
  ready_step_tensors_ += step_tensors(entry.description);
}

void Coordinator::reject(TensorEntry& entry, const std::string& why) {
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kReject;
  schedule.process_set = entry.description.process_set;
  schedule.entries.push_back({wire::kNoSlot, entry.description.name, {}});
  schedule.status = {
      about_sets(entry.description.kind) ? ErrorKind::kInvalidArgument : ErrorKind::kMismatch, why};
  immediate_.push_back(std::move(schedule));
  if (entry.slot == wire::kNoSlot) {
    forget(entry);
  } else {
    finish_round(entry);
  }
}

void Coordinator::finish_round(TensorEntry& entry) {
  if (entry.announced > 0) --open_;
  entry.announced = 0;
  entry.registered = 0;
  entry.variants.clear();
  entry.absent.clear();
  entry.ready = false;
}

void Coordinator::forget(TensorEntry& entry) {
  if (entry.announced > 0) --open_;
  for (LastAnnounced& last : last_announced_) {
    if (last.entry != &entry) continue;
    last.name = entry.description.name;
    last.entry = nullptr;
  }
  if (in_this_step(entry)) steps_.remember(identity_of(entry.description));
  const std::string key = entry.key;  // a copy: the entry owns it
  entries_.erase(key);
}

// ---- slots --------------------------------------------------------------------------------------

void Coordinator::assign_slot(TensorEntry& entry) {
  if (!entry.description.cacheable || options_.cache_capacity == 0) return;
  if (recency_.size() >= options_.cache_capacity && !evict_least_recent()) return;
  if (free_slots_.empty()) {
    // Evicted slots can be reused only after a round trip; until then new ones are used.
    if (used_slots_ == kMaxSlots) return;
    free_slots_.push_back(used_slots_++);
    by_slot_.resize(used_slots_, nullptr);
  }
  entry.slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[entry.slot] = &entry;
  entry.recency = recency_.insert(recency_.end(), &entry);
}

bool Coordinator::evict_least_recent() {
  const auto victim = std::find_if(recency_.begin(), recency_.end(),
                                   [](const TensorEntry* e) { return e->announced == 0; });
  if (!eviction_warned_) {
    eviction_warned_ = true;
    HVD_LOG(kWarning) << "more than " << options_.cache_capacity
                      << " tensors are in use; ranks send descriptions that do not fit the cache "
                         "every time. Raise HOROVOD_CACHE_CAPACITY.";
  }
  if (victim == recency_.end()) return false;
  evict(**victim);
  return true;
}

/// Takes the slot from a tensor and forgets it.
void Coordinator::evict(TensorEntry& entry) {
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kEvict;
  schedule.entries.push_back({entry.slot, {}, {}});
  immediate_.push_back(std::move(schedule));
  evicted_.add({entry.slot, entry.description});
  by_slot_[entry.slot] = nullptr;
  recency_.erase(entry.recency);
  forget(entry);
}

std::vector<wire::Slot> Coordinator::release_evicted(std::uint64_t position) {
  std::vector<wire::Slot> released;
  for (const Evicted& evicted : evicted_.release(position)) released.push_back(evicted.slot);
  free_slots_.insert(free_slots_.end(), released.begin(), released.end());
  return released;
}

// ---- batches ------------------------------------------------------------------------------------

std::int64_t Coordinator::effective_threshold() const {
  const std::int64_t unit = options_.fusion_unit;
  return (settings_.fusion_threshold + unit - 1) / unit * unit;
}

bool Coordinator::somebody_blocked(const std::vector<std::uint64_t>& blocked_on) const {
  for (std::size_t rank = 0; rank < blocked_on.size(); ++rank) {
    const std::uint64_t word = blocked_on[rank];
    if (word == blocked::kNothing) continue;
    if (word == blocked::kEverything) {
      // As long as some ranks have not announced an open tensor, more may become ready for the same
      // batch.
      if (open_ == ready_.size()) return true;
      continue;
    }
    if (blocked::is_ticket(word)) {
      const wire::Ticket ticket = blocked::ticket_of(word);
      const auto waits_for = [&](const TensorEntry* entry) {
        return entry->by[rank] && entry->tickets[rank] == ticket;
      };
      if (std::any_of(ready_.begin(), ready_.end(), waits_for)) return true;
    } else {
      const wire::Slot slot = blocked::slot_of(word);
      if (slot < by_slot_.size() && by_slot_[slot] != nullptr && by_slot_[slot]->ready) return true;
    }
  }
  return false;
}

/// Whether it was scheduled in the current step. An entry that was never scheduled may be new
/// although its tensor is not.
bool Coordinator::in_this_step(const TensorEntry& entry) const {
  return entry.last_step != 0 ? entry.last_step == steps_.step()
                              : steps_.seen(identity_of(entry.description));
}

bool Coordinator::step_complete() const {
  const std::int64_t expected = steps_.tensors_expected();
  const std::int64_t ready = ready_step_tensors_;
  if (ready == 0 || (ready != expected && steps_.tensors_so_far() + ready != expected))
    return false;
  const auto first = std::find_if(ready_.begin(), ready_.end(), [](const TensorEntry* entry) {
    return counts_for_steps(entry->description);
  });
  return (in_this_step(**first) ? 0 : steps_.tensors_so_far()) + ready == expected;
}

void Coordinator::log_step(TensorEntry& entry, Nanos now) {
  const wire::Request& description = entry.description;
  const std::int64_t tensors = step_tensors(description);
  if (tensors == 0) return;
  if (entry.last_step != 0) {
    steps_.known_tensor(entry.last_step, tensors, description.bytes(), now, settings_.epoch);
  } else {
    steps_.tensor(identity_of(description), description.cacheable, tensors, description.bytes(),
                  now, settings_.epoch);
  }
  entry.last_step = steps_.step();
}

void Coordinator::schedule(Nanos now, const std::vector<std::uint64_t>& blocked_on,
                           std::vector<wire::Schedule>& out) {
  change_membership(out);
  if (!ready_.empty()) {
    if (somebody_blocked(blocked_on)) {
      close_all(wire::CloseReason::kBlocked, out);
    } else if (step_complete()) {
      close_all(wire::CloseReason::kStepDone, out);
    } else if (now >= deadline()) {
      close_all(wire::CloseReason::kCycle, out);
    } else {
      close_full(out);
    }
  }
  flush_immediate(out);
}

void Coordinator::flush_immediate(std::vector<wire::Schedule>& out) {
  for (wire::Schedule& schedule : immediate_) out.push_back(std::move(schedule));
  immediate_.clear();
}

Nanos Coordinator::deadline() const {
  return ready_.empty() ? kForever : first_ready_ + settings_.cycle_time;
}

void Coordinator::close_all(wire::CloseReason reason, std::vector<wire::Schedule>& out) {
  while (!ready_.empty()) {
    const auto plan = plan_fusion(ready_, effective_threshold(), options_.disable_group_fusion);
    take_batch(plan, plan.full ? wire::CloseReason::kFull : reason, out);
  }
}

void Coordinator::close_full(std::vector<wire::Schedule>& out) {
  const std::int64_t threshold = effective_threshold();
  while (!ready_.empty()) {
    // This runs after every announcement: mostly the sums are enough.
    if (has_room(*ready_.front(), ready_bytes_, ready_message_bytes_, threshold,
                 options_.disable_group_fusion)) {
      return;
    }
    const auto plan = plan_fusion(ready_, threshold, options_.disable_group_fusion);
    if (!plan.full) return;
    take_batch(plan, wire::CloseReason::kFull, out);
  }
}

void Coordinator::take_batch(const FusionPlan& plan, wire::CloseReason reason,
                             std::vector<wire::Schedule>& out) {
  wire::Schedule batch;
  batch.type = wire::ScheduleType::kBatch;
  batch.process_set = ready_.front()->description.process_set;
  batch.batch = next_batch_++;
  batch.reason = reason;
  batch.registered = ready_.front()->in_shared_memory();
  const Nanos now = monotonic_now();
  const Nanos first_ready = ready_[plan.chosen.front()]->ready_time;
  for (const std::size_t index : plan.chosen) {
    TensorEntry& entry = *ready_[index];
    log_step(entry, now);
    bytes_scheduled_ += entry.fused_bytes;
    ready_bytes_ -= entry.fused_bytes;
    ready_message_bytes_ -= entry.message_bytes;
    ready_step_tensors_ -= step_tensors(entry.description);
    if (entry.slot != wire::kNoSlot) {
      add_slot(batch.entries, entry);
      recency_.splice(recency_.end(), recency_, entry.recency);
    } else {
      assign_slot(entry);
      batch.entries.push_back({entry.slot, entry.description.name, {}});
    }
    if (!entry.absent.empty()) {
      batch.entries.back().name = entry.description.name;
      batch.entries.back().description = entry.description;
    }
  }
  // Only after all have their slots: a tensor in flight cannot be evicted, and a batch must not
  // evict its own tensors.
  for (const std::size_t index : plan.chosen) {
    TensorEntry& entry = *ready_[index];
    finish_round(entry);
    if (entry.slot == wire::kNoSlot) forget(entry);
    ready_[index] = nullptr;
  }
  std::erase(ready_, nullptr);
  scheduled_ += plan.chosen.size();
  first_ready_ = ready_.empty() ? kForever : ready_.front()->ready_time;
  if (batch.process_set == 0) steps_.batch();
  if (observer_ != nullptr) observer_->on_batch(batch.batch, now, first_ready);
  // An eviction may have made room for one of these entries, so it must be scheduled first.
  flush_immediate(out);
  out.push_back(std::move(batch));
}

// ---- settings and inspection --------------------------------------------------------------------

std::uint64_t Coordinator::change_settings(const SettingsChange& change) {
  wire::RuntimeSettings& now = settings_;
  ++now.epoch;
  now.fusion_threshold = change.fusion_threshold.value_or(now.fusion_threshold);
  now.cycle_time = change.cycle_time.value_or(now.cycle_time);
  now.chunk_size = change.chunk_size.value_or(now.chunk_size);
  now.one_shot_limit = change.one_shot_limit.value_or(now.one_shot_limit);
  now.nccl_bypass_limit = change.nccl_bypass_limit.value_or(now.nccl_bypass_limit);
  now.hierarchical_allreduce = change.hierarchical_allreduce.value_or(now.hierarchical_allreduce);
  now.hierarchical_allgather = change.hierarchical_allgather.value_or(now.hierarchical_allgather);
  now.nccl_streams = change.nccl_streams.value_or(now.nccl_streams);
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kSettings;
  schedule.settings = now;
  immediate_.push_back(std::move(schedule));
  return settings_.epoch;
}

void Coordinator::interrupt(std::uint64_t number) {
  if (number <= interrupt_) return;
  interrupt_ = number;
  wire::Schedule schedule;
  schedule.type = wire::ScheduleType::kInterrupt;
  schedule.interrupt = number;
  immediate_.push_back(std::move(schedule));
}

std::vector<const TensorEntry*> Coordinator::incomplete() const {
  std::vector<const TensorEntry*> found;
  for (const auto& [key, entry] : entries_) {
    if (entry->announced > 0 && !entry->ready) found.push_back(entry.get());
  }
  return found;
}

const std::string& Coordinator::last_announced(int rank, Nanos& time) const {
  const LastAnnounced& last = last_announced_[static_cast<std::size_t>(rank)];
  time = last.time;
  return last.entry != nullptr ? last.entry->description.name : last.name;
}

}  // namespace hvdtune
