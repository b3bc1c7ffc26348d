#include "engine/coordination/coordinator.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/job/blocked.h"
#include "engine/submission/operation_table.h"

namespace hvdtune::testing::test_coordinator {
namespace {

using wire::Schedule;
using wire::ScheduleType;

/// Every deadline is over then.
constexpr Nanos kLate = kForever - 1;

wire::Request allreduce(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  wire::Request request;
  request.name = name;
  request.tensors = {{DType::kFloat32, std::move(shape)}};
  return request;
}

wire::Request joining() {
  wire::Request request;
  request.kind = OpKind::kJoin;
  request.name = "join";
  request.cacheable = false;
  return request;
}

wire::Announce announced(const wire::Request& request, wire::Ticket ticket = 1) {
  wire::Announce announce;
  announce.type = wire::AnnounceType::kRequest;
  announce.request = request;
  announce.ticket = ticket;
  return announce;
}

wire::Announce announced_slot(wire::Slot slot, wire::Ticket ticket = 1) {
  wire::Announce announce;
  announce.slot = slot;
  announce.ticket = ticket;
  return announce;
}

std::vector<std::vector<int>> one_set(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return {all};
}

Coordinator make(int ranks, std::uint32_t capacity = 1024, std::int64_t threshold = 1 << 20) {
  CoordinatorOptions options;
  options.cache_capacity = capacity;
  wire::RuntimeSettings settings;
  settings.fusion_threshold = threshold;
  return {options, one_set(ranks), settings};
}

std::vector<Schedule> due(Coordinator& coordinator, Nanos now = kLate,
                          const std::vector<std::uint64_t>& blocked_on = {}) {
  std::vector<Schedule> out;
  coordinator.schedule(now, blocked_on, out);
  return out;
}

void announce_everywhere(Coordinator& coordinator, int ranks, const wire::Request& request) {
  for (int rank = 0; rank < ranks; ++rank) coordinator.announce(rank, announced(request));
}

/// The reason why rank 0's and rank 1's descriptions do not go together, or "" if they do.
std::string verdict(const wire::Request& first, const wire::Request& second) {
  Coordinator coordinator = make(2);
  coordinator.announce(1, announced(second));  // the order of arrival must not matter
  coordinator.announce(0, announced(first));
  const auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  if (out[0].type != ScheduleType::kReject) return "";
  CHECK(out[0].status.kind == ErrorKind::kMismatch);
  CHECK_EQ(out[0].entries.front().name, first.name);
  return out[0].status.text;
}

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MSG(text.find(part) != std::string::npos, "\"" << text << "\" lacks \"" << part << "\"");
}

}  // namespace

TEST(a_tensor_is_ready_when_the_last_rank_has_announced_it) {
  Coordinator coordinator = make(3);
  coordinator.announce(2, announced(allreduce("a")));
  coordinator.announce(0, announced(allreduce("a")));
  CHECK(due(coordinator).empty());
  CHECK(!coordinator.has_ready());
  CHECK_EQ(coordinator.deadline(), kForever);
  CHECK_EQ(coordinator.incomplete().size(), 1U);
  coordinator.announce(1, announced(allreduce("a")));
  CHECK(coordinator.incomplete().empty());
  const auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].type == ScheduleType::kBatch);
  CHECK(out[0].reason == wire::CloseReason::kCycle);
  CHECK_EQ(out[0].entries.size(), 1U);
  CHECK_EQ(out[0].entries[0].name, "a");
  CHECK(due(coordinator).empty());
}

TEST(who_may_wait_for_everything_does_not_wait_out_a_cycle) {
  Coordinator coordinator = make(2);
  const std::vector<std::uint64_t> blocked_on = {blocked::kEverything, blocked::kNothing};
  const Nanos now = monotonic_now();
  announce_everywhere(coordinator, 2, allreduce("a"));
  coordinator.announce(0, announced(allreduce("b")));
  CHECK(due(coordinator, now, blocked_on).empty());  // b comes: both may go together
  coordinator.announce(1, announced(allreduce("b")));
  CHECK(due(coordinator, now).empty());  // nobody waits
  const auto out = due(coordinator, now, blocked_on);
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].reason == wire::CloseReason::kBlocked);
  CHECK_EQ(out[0].entries.size(), 2U);
}

TEST(all_are_ready_no_earlier_than_the_last_of_them) {
  // What the coordinator reads at once has one time, from before; ranks go on announcing meanwhile.
  struct Times : CoordinatorObserver {
    Nanos all_ready = 0;
    void on_first_ready(const TensorEntry&, Nanos) override {}
    void on_rank_ready(const TensorEntry&, int, Nanos) override {}
    void on_all_ready(const TensorEntry&, Nanos time) override { all_ready = time; }
    void on_absent(const TensorEntry&, std::size_t) override {}
    void on_batch(std::uint64_t, Nanos, Nanos) override {}
  } times;
  Coordinator coordinator = make(3);
  announce_everywhere(coordinator, 3, allreduce("a"));
  const wire::Slot slot = due(coordinator)[0].entries[0].slot;
  coordinator.set_observer(&times);
  coordinator.announce(0, {slot, 1, 1020, false}, 1000);  // ns
  coordinator.announce(1, {slot, 1, 1050, false}, 1000);
  coordinator.announce(2, {slot, 1, 1030, false}, 1000);
  CHECK_EQ(times.all_ready, 1050);
}

TEST(only_what_all_ranks_have_registered_is_reduced_in_place) {
  Coordinator coordinator = make(2);
  const std::vector<std::string> names = {"a", "b", "c"};
  for (const std::string& name : names) announce_everywhere(coordinator, 2, allreduce(name));
  auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(!out[0].registered);  // by their descriptions
  std::vector<wire::Slot> slots;
  for (const wire::BatchEntry& entry : out[0].entries) slots.push_back(entry.slot);
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      wire::Announce announce = announced_slot(slots[i]);
      announce.registered = i == 2 || (i == 0 && rank == 1);
      coordinator.announce(rank, announce);
    }
  }
  out = due(coordinator);
  CHECK_EQ(out.size(), 2U);
  CHECK(!out[0].registered);
  CHECK_EQ(out[0].entries.size(), 1U);
  CHECK_EQ(out[0].entries[0].run, 2U);
  CHECK(out[1].registered);
  CHECK_EQ(out[1].entries[0].slot, slots[2]);
  // A round says nothing about the next.
  for (int rank = 0; rank < 2; ++rank) coordinator.announce(rank, announced_slot(slots[2]));
  out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(!out[0].registered);
}

TEST(a_slot_that_was_evicted_meanwhile_is_not_registered) {
  Coordinator coordinator = make(2, 1);
  announce_everywhere(coordinator, 2, allreduce("a"));
  const wire::Slot slot = due(coordinator)[0].entries[0].slot;
  announce_everywhere(coordinator, 2, allreduce("b"));  // takes the only place
  CHECK_EQ(due(coordinator).size(), 2U);
  for (int rank = 0; rank < 2; ++rank) {
    wire::Announce announce = announced_slot(slot);
    announce.registered = true;
    coordinator.announce(rank, announce);
  }
  const auto out = due(coordinator);
  CHECK(!out.empty());
  CHECK(out.back().type == ScheduleType::kBatch);
  CHECK(!out.back().registered);
}

TEST(a_batch_waits_for_company_until_its_deadline) {
  Coordinator coordinator = make(1);
  coordinator.announce(0, announced(allreduce("a")));
  const Nanos deadline = coordinator.deadline();
  CHECK(due(coordinator, deadline - 1).empty());
  coordinator.announce(0, announced(allreduce("b")));
  CHECK_EQ(coordinator.deadline(), deadline);
  const auto out = due(coordinator, deadline);
  CHECK_EQ(out.size(), 1U);
  CHECK_EQ(out[0].entries.size(), 2U);
}

TEST(a_blocked_rank_closes_the_batch_at_once) {
  Coordinator coordinator = make(2);
  coordinator.announce(0, announced(allreduce("a"), 5));
  coordinator.announce(1, announced(allreduce("a"), 9));
  CHECK(due(coordinator, 0, {blocked::on_ticket(4), blocked::on_ticket(5)}).empty());
  const auto out = due(coordinator, 0, {blocked::kNothing, blocked::on_ticket(9)});
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].reason == wire::CloseReason::kBlocked);
  const wire::Slot slot = out[0].entries[0].slot;
  coordinator.announce(0, announced_slot(slot));
  CHECK(due(coordinator, 0, {blocked::on_slot(slot), blocked::kNothing}).empty());
  coordinator.announce(1, announced_slot(slot));
  CHECK_EQ(due(coordinator, 0, {blocked::on_slot(slot), blocked::kNothing}).size(), 1U);
}

TEST(names_travel_once_and_slots_after_that) {
  Coordinator coordinator = make(2);
  announce_everywhere(coordinator, 2, allreduce("a"));
  const auto first = due(coordinator);
  const wire::Slot slot = first[0].entries[0].slot;
  CHECK(slot != wire::kNoSlot);
  CHECK_EQ(first[0].entries[0].name, "a");
  coordinator.announce(0, announced_slot(slot));
  coordinator.announce(1, announced_slot(slot));
  const auto second = due(coordinator);
  CHECK_EQ(second[0].entries[0].slot, slot);
  CHECK_EQ(second[0].entries[0].name, "");
  CHECK_EQ(second[0].batch, first[0].batch + 1);
}

TEST(neighbouring_slots_travel_as_one_entry) {
  Coordinator coordinator = make(1);
  std::map<std::string, wire::Slot> slots;
  for (const char* name : {"a", "b", "c", "d"}) coordinator.announce(0, announced(allreduce(name)));
  const auto first = due(coordinator);
  for (const auto& entry : first[0].entries) slots[entry.name] = entry.slot;
  const auto again = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      coordinator.announce(0, wire::AnnouncedSlot{slots[name], 1, 0}, monotonic_now());
    }
    return Schedule::decode(due(coordinator)[0].encode()).entries;
  };
  const auto in_order = again({"a", "b", "c", "d"});
  CHECK_EQ(in_order.size(), 1U);
  CHECK_EQ(in_order[0].slot, slots["a"]);
  CHECK_EQ(in_order[0].run, 4U);
  const auto mixed = again({"c", "d", "b", "a"});
  CHECK_EQ(mixed.size(), 3U);
  CHECK_EQ(mixed[0].slot, slots["c"]);
  CHECK_EQ(mixed[0].run, 2U);
  CHECK_EQ(mixed[2].slot, slots["a"]);
  CHECK_EQ(mixed[2].run, 1U);
}

TEST(a_step_is_complete_with_slots_and_when_a_slot_is_lost_in_between) {
  Coordinator coordinator = make(1, 2);  // three tensors: one of them has no slot at any time
  std::map<std::string, wire::Slot> slots;
  for (int step = 0; step < 6; ++step) {
    std::vector<Schedule> out;
    for (const std::string name : {"a", "b", "c"}) {
      coordinator.announce(0, announced(allreduce(name)));
      if (name != "c") continue;
      out = due(coordinator, 0);  // long before the cycle is over
    }
    // Two steps of the same tensors show what a step is; the third shows the second's end.
    const bool closed = std::any_of(out.begin(), out.end(), [](const Schedule& schedule) {
      return schedule.type == ScheduleType::kBatch &&
             schedule.reason == wire::CloseReason::kStepDone;
    });
    CHECK_EQ(closed, step >= 3);
    due(coordinator);
  }
}

TEST(automatic_names_and_capacity_zero_get_no_slot) {
  Coordinator without = make(1, 0);
  without.announce(0, announced(allreduce("a")));
  CHECK_EQ(due(without)[0].entries[0].slot, wire::kNoSlot);
  Coordinator with = make(1);
  wire::Request unnamed = allreduce("allreduce.noname.1");
  unnamed.cacheable = false;
  with.announce(0, announced(unnamed));
  CHECK_EQ(due(with)[0].entries[0].slot, wire::kNoSlot);
}

TEST(batches_hold_at_most_the_threshold) {
  Coordinator coordinator = make(1, 1024, 100);
  for (const char* name : {"a", "b", "c", "d"}) {
    coordinator.announce(0, announced(allreduce(name, {12})));  // 48 bytes
  }
  const auto out = due(coordinator, 0);  // long before the deadline: full ones leave anyway
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].reason == wire::CloseReason::kFull);
  CHECK_EQ(out[0].entries.size(), 2U);
  coordinator.announce(0, announced(allreduce("large", {1000})));
  const auto rest = due(coordinator);
  CHECK_EQ(rest.size(), 2U);
  CHECK_EQ(rest[0].entries[0].name, "c");
  CHECK_EQ(rest[0].entries.size(), 2U);
  CHECK_EQ(rest[1].entries[0].name, "large");
}

TEST(without_a_threshold_nothing_is_fused) {
  Coordinator coordinator = make(1, 1024, 0);
  coordinator.announce(0, announced(allreduce("a")));
  coordinator.announce(0, announced(allreduce("b")));
  CHECK_EQ(due(coordinator, 0).size(), 2U);
}

TEST(only_like_tensors_are_fused) {
  wire::Request other_type = allreduce("b");
  other_type.tensors[0].dtype = DType::kFloat64;
  wire::Request other_factor = allreduce("c");
  other_factor.postscale = 0.5;
  wire::Request other_reduction = allreduce("d");
  other_reduction.reduce_op = ReduceOp::kMax;
  wire::Request on_gpu = allreduce("h");
  on_gpu.device = 1;
  wire::Request on_another_gpu = allreduce("i");
  on_another_gpu.device = 0;  // of another rank, had there been one
  wire::Request broadcast = allreduce("e");
  broadcast.kind = OpKind::kBroadcast;
  wire::Request second_broadcast = broadcast;
  second_broadcast.name = "f";
  Coordinator coordinator = make(1);
  for (const auto& request : {allreduce("a"), other_type, other_factor, other_reduction, on_gpu,
                              broadcast, second_broadcast, on_another_gpu, allreduce("g")}) {
    coordinator.announce(0, announced(request));
  }
  const auto out = due(coordinator);
  CHECK_EQ(out.size(), 7U);
  CHECK_EQ(out[0].entries.size(), 2U);  // a and g, past those that do not match
  CHECK_EQ(out[0].entries[1].name, "g");
  CHECK_EQ(out[4].entries.size(), 2U);  // what is on GPUs, whichever
  CHECK_EQ(out[4].entries[1].name, "i");
}

TEST(process_sets_do_not_wait_for_each_other) {
  Coordinator coordinator({}, {{0, 1, 2}, {0, 2}}, {});
  coordinator.announce(0, announced(allreduce("a")));
  wire::Request in_set = allreduce("a");
  in_set.process_set = 1;
  coordinator.announce(0, announced(in_set));
  coordinator.announce(2, announced(in_set));
  const auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK_EQ(out[0].process_set, 1U);
  CHECK_EQ(coordinator.incomplete().size(), 1U);
}

TEST(every_kind_of_disagreement_is_named) {
  const wire::Request base = allreduce("w", {2, 3});
  wire::Request other = base;
  CHECK_EQ(verdict(base, other), "");
  other.tensors[0].dtype = DType::kInt32;
  check_contains(verdict(base, other), "rank 0 has float32, rank 1 has int32");
  other = base;
  other.kind = OpKind::kAllgather;
  check_contains(verdict(base, other), "rank 0 has ALLREDUCE, rank 1 has ALLGATHER");
  other = allreduce("w", {3, 2});
  check_contains(verdict(base, other), "rank 0 has [2, 3], rank 1 has [3, 2]");
  other = base;
  other.prescale = 2;
  check_contains(verdict(base, other), "prescale");
  other = base;
  other.reduce_op = ReduceOp::kMax;
  check_contains(verdict(base, other), "reduction operation");
  other = base;
  other.grouped = true;
  other.tensors.push_back(other.tensors[0]);
  check_contains(verdict(base, other), "a single tensor, rank 1 has a group of 2 tensors");

  wire::Request broadcast = base;
  broadcast.kind = OpKind::kBroadcast;
  other = broadcast;
  other.root = 1;
  check_contains(verdict(broadcast, other), "root ranks for tensor w: rank 0 has 0, rank 1 has 1");

  wire::Request on_gpu = broadcast;
  on_gpu.device = 0;
  CHECK_EQ(verdict(broadcast, on_gpu),
           "Mismatched CPU/GPU device selection for tensor w: rank 0 has CPU, rank 1 has GPU.");
  other = on_gpu;
  other.root = 1;
  check_contains(verdict(broadcast, other), "root ranks");  // comes before
  other = on_gpu;
  other.device = 3;  // each rank has its own
  CHECK_EQ(verdict(on_gpu, other), "");

  wire::Request gather = base;
  gather.kind = OpKind::kAllgather;
  other = gather;
  other.tensors[0].shape = {7, 3};
  CHECK_EQ(verdict(gather, other), "");
  other.tensors[0].shape = {2, 4};
  check_contains(verdict(gather, other), "dimension 1 equal to 3");
  other.tensors[0].shape = {2, 3, 1};
  check_contains(verdict(gather, other), "a tensor of rank 2, rank 1 has a tensor of rank 3");
  gather.tensors[0].shape = {};
  check_contains(verdict(gather, gather), "scalar");
}

TEST(a_rejected_tensor_can_be_submitted_again) {
  Coordinator coordinator = make(2);
  announce_everywhere(coordinator, 2, allreduce("a"));
  const wire::Slot slot = due(coordinator)[0].entries[0].slot;
  // One rank changes the shape of a tensor that has a slot.
  coordinator.announce(0, announced_slot(slot));
  coordinator.announce(1, announced(allreduce("a", {5})));
  CHECK(due(coordinator)[0].type == ScheduleType::kReject);
  // Both do: the slot gets a new description, which holds from then on.
  announce_everywhere(coordinator, 2, allreduce("a", {5}));
  CHECK_EQ(due(coordinator)[0].entries[0].slot, slot);
  coordinator.announce(0, announced(allreduce("a", {4})));
  coordinator.announce(1, announced_slot(slot));
  CHECK(due(coordinator)[0].type == ScheduleType::kReject);
}

TEST(a_refused_description_does_not_replace_that_of_the_slot) {
  Coordinator coordinator = make(2);
  wire::Request sum = allreduce("a");
  sum.tensors[0].dtype = DType::kInt32;
  wire::Request adasum = sum;
  adasum.reduce_op = ReduceOp::kAdasum;
  announce_everywhere(coordinator, 2, sum);
  const wire::Slot slot = due(coordinator)[0].entries[0].slot;
  announce_everywhere(coordinator, 2, adasum);
  auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].type == ScheduleType::kReject);
  check_contains(out[0].status.text, "ADASUM");
  // Rank 0 still means the sum by the slot.
  coordinator.announce(1, announced(joining()));
  coordinator.announce(0, announced_slot(slot));
  out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].type == ScheduleType::kBatch);
  CHECK(out[0].entries[0].description == sum);
}

TEST(a_description_refused_while_a_rank_has_joined_is_forgotten) {
  Coordinator coordinator = make(3);
  wire::Request plain = allreduce("x");
  plain.kind = OpKind::kReducescatter;
  wire::Request halved = plain;
  halved.prescale = 0.5;
  announce_everywhere(coordinator, 3, plain);
  const wire::Slot slot = due(coordinator)[0].entries[0].slot;
  coordinator.announce(2, announced(joining()));
  announce_everywhere(coordinator, 2, halved);  // ranks 0 and 1
  auto out = due(coordinator);
  CHECK_EQ(out.size(), 1U);
  CHECK(out[0].type == ScheduleType::kReject);
  for (int rank = 0; rank < 2; ++rank) coordinator.announce(rank, announced(joining()));
  CHECK(due(coordinator)[0].type == ScheduleType::kJoined);
  // The slot means no factor, so the two do not fit into one batch.
  wire::Request other = halved;
  other.name = "y";
  for (int rank = 0; rank < 3; ++rank) coordinator.announce(rank, announced_slot(slot));
  announce_everywhere(coordinator, 3, other);
  out = due(coordinator);
  CHECK_EQ(out.size(), 2U);
  CHECK(out[0].type == ScheduleType::kBatch);
  CHECK(out[1].type == ScheduleType::kBatch);
}

TEST(the_last_rank_to_join_is_the_one_that_called_last) {
  Coordinator coordinator = make(3);
  // Announcements are read rank by rank, so a later rank may have called earlier.
  for (const std::vector<Nanos>& called :
       {std::vector<Nanos>{30, 20, 10}, {10, 30, 20}, {1, 2, 3}, {5, 5, 5}}) {
    for (int rank = 0; rank < 3; ++rank) {
      wire::Announce join = announced(joining());
      join.time = called[static_cast<std::size_t>(rank)];
      coordinator.announce(rank, std::move(join));
    }
    const auto out = due(coordinator);
    CHECK_EQ(out.size(), 1U);
    CHECK(out[0].type == ScheduleType::kJoined);
    const auto latest = std::max_element(called.rbegin(), called.rend());
    CHECK_EQ(out[0].rank, static_cast<int>(called.rend() - latest) - 1);
  }
}

TEST(an_announcement_by_an_evicted_slot_keeps_its_description) {
  for (const bool same : {true, false}) {
    Coordinator coordinator = make(2, 1);
    announce_everywhere(coordinator, 2, allreduce("a"));
    const wire::Slot slot = due(coordinator)[0].entries[0].slot;
    announce_everywhere(coordinator, 2, allreduce("b"));
    const auto out = due(coordinator);
    CHECK_EQ(out.size(), 2U);
    CHECK(out[0].type == ScheduleType::kEvict);
    CHECK_EQ(out[0].entries[0].slot, slot);
    coordinator.eviction_published(100);
    // Rank 0 has heard of the eviction, rank 1 has not.
    coordinator.announce(0, announced(allreduce("a", {same ? 4 : 5})));
    coordinator.announce(1, announced_slot(slot));
    const auto after = due(coordinator);
    CHECK(after.back().type == (same ? ScheduleType::kBatch : ScheduleType::kReject));
    CHECK(coordinator.release_evicted(99).empty());
    CHECK(coordinator.release_evicted(100) == std::vector<wire::Slot>{slot});
  }
}

TEST(a_batch_never_evicts_its_own_tensors) {
  Coordinator coordinator = make(1, 2);
  for (const char* name : {"a", "b", "c", "d"}) {
    coordinator.announce(0, announced(allreduce(name)));
  }
  const auto first = due(coordinator);
  CHECK_EQ(first.size(), 1U);
  CHECK_EQ(first[0].entries.size(), 4U);
  std::vector<wire::Slot> slots;
  for (const auto& entry : first[0].entries) {
    if (entry.slot != wire::kNoSlot) slots.push_back(entry.slot);
  }
  CHECK_EQ(slots.size(), 2U);
  // One old tensor and a new one in the same batch.
  coordinator.announce(0, announced_slot(slots[0]));
  coordinator.announce(0, announced(allreduce("e")));
  for (const Schedule& schedule : due(coordinator)) {
    if (schedule.type != ScheduleType::kEvict) continue;
    CHECK(schedule.entries[0].slot != slots[0]);
  }
}

TEST(new_settings_take_their_place_in_the_schedule) {
  Coordinator coordinator = make(1);
  coordinator.announce(0, announced(allreduce("a")));
  CHECK_EQ(coordinator.change_settings({.fusion_threshold = 0}), 1U);
  const auto out = due(coordinator);
  CHECK_EQ(out.size(), 2U);
  CHECK(out[0].type == ScheduleType::kSettings);
  CHECK_EQ(out[0].settings.epoch, 1U);
  CHECK_EQ(out[0].settings.fusion_threshold, 0);
  CHECK_EQ(coordinator.change_settings({}), 2U);
}

TEST(changes_of_settings_that_follow_each_other_do_not_undo_one_another) {
  Coordinator coordinator = make(1);
  const std::int64_t chunk_size = coordinator.settings().chunk_size;
  coordinator.change_settings({.fusion_threshold = 0});
  coordinator.change_settings({.cycle_time = 3 * kMillisecond});
  coordinator.change_settings({.one_shot_limit = 4096, .hierarchical_allgather = true});
  coordinator.announce(0, announced(allreduce("a")));
  const auto out = due(coordinator);
  CHECK_EQ(out[2].settings.epoch, 3U);
  for (std::size_t at = 0; at < 3; ++at) {
    CHECK(out[at].type == ScheduleType::kSettings);
    CHECK_EQ(out[at].settings.fusion_threshold, 0);
    CHECK_EQ(out[at].settings.chunk_size, chunk_size);
  }
  CHECK_EQ(out[1].settings.cycle_time, 3 * kMillisecond);
  CHECK_EQ(out[2].settings.cycle_time, 3 * kMillisecond);
  CHECK_EQ(out[2].settings.one_shot_limit, 4096);
  CHECK_EQ(out[2].settings.nccl_streams, 1);
  CHECK(out[2].settings.hierarchical_allgather && !out[1].settings.hierarchical_allgather);
  CHECK(!out[2].settings.hierarchical_allreduce);
}

namespace {

/// A rank as the engine builds it from OperationTable, with the two queues to and from the
/// coordinator.
struct SimulatedRank {
  OperationTable table;
  std::deque<wire::Announce> sent;
  std::size_t read = 0;  // position in the schedule
  wire::Ticket next_ticket = 1;
  std::map<std::string, int> submitted;
  std::map<std::string, int> finished;
  std::vector<std::string> executed;  // "<batch>:<name>:<elements>" in order

  void submit(const wire::Request& request) {
    auto operation = std::make_shared<Operation>();
    operation->request = request;
    wire::Slot known = wire::kNoSlot;
    CHECK(table.begin(operation, known));
    sent.push_back(operation->slot != wire::kNoSlot ? announced_slot(operation->slot, next_ticket++)
                                                    : announced(request, next_ticket++));
    ++submitted[request.name];
  }

  void execute(std::uint64_t batch, const OperationPtr& operation) {
    CHECK_MSG(operation != nullptr, "batch " << batch << " has what the rank does not know");
    executed.push_back(std::to_string(batch) + ":" + operation->request.name + ":" +
                       std::to_string(operation->request.tensors[0].elements()));
    ++finished[operation->request.name];
    table.finish(operation, true);
  }

  void read_next(const Schedule& schedule) {
    ++read;
    if (schedule.type == ScheduleType::kEvict) {
      table.evict(schedule.entries[0].slot);
      return;
    }
    CHECK(schedule.type == ScheduleType::kBatch);
    for (const auto& entry : schedule.entries) {
      for (std::uint32_t next = 0; next < entry.run; ++next) {
        execute(schedule.batch, table.find(schedule.process_set, entry, next));
      }
    }
  }
};

/// All ranks run the same rounds of the same tensors, each in an order of its own, while messages
/// are delivered at random times; the tensors' shapes change from time to time.
void simulate(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const int ranks = 1 + static_cast<int>(generator() % 4);
  const auto names = 1 + generator() % 8;
  const auto rounds = 30;
  Coordinator coordinator = make(ranks, static_cast<std::uint32_t>(generator() % 6),
                                 static_cast<std::int64_t>(generator() % 200));
  std::vector<SimulatedRank> all(static_cast<std::size_t>(ranks));
  std::vector<Schedule> schedule;
  const auto elements = [&](std::uint64_t name, int round) {
    return static_cast<std::int64_t>(name + 1 + static_cast<std::uint64_t>(round / 7));
  };
  const auto all_done = [&] {
    return std::all_of(all.begin(), all.end(), [&](const SimulatedRank& rank) {
      return rank.executed.size() == names * rounds;
    });
  };
  for (int step = 0; !all_done(); ++step) {
    CHECK_MSG(step < 200000, "seed " << seed << ": no progress any more");
    const auto rank = generator() % all.size();
    SimulatedRank& self = all[rank];
    switch (generator() % 4) {
      case 0: {  // submit some tensor that is not in flight and has rounds left
        const auto name = generator() % names;
        const std::string text = "t" + std::to_string(name);
        const int round = self.submitted[text];
        if (round < rounds && self.finished[text] == round)
          self.submit(allreduce(text, {elements(name, round)}));
        break;
      }
      case 1:
        if (self.sent.empty()) break;
        coordinator.announce(static_cast<int>(rank), std::move(self.sent.front()));
        self.sent.pop_front();
        break;
      case 2:
        if (self.read < schedule.size()) self.read_next(schedule[self.read]);
        break;
      default: {
        std::size_t slowest = schedule.size();
        for (const SimulatedRank& each : all) slowest = std::min(slowest, each.read);
        // As in the engine: what was announced before a rank passed an eviction is read first.
        for (std::size_t each = 0; each < all.size(); ++each) {
          while (!all[each].sent.empty()) {
            coordinator.announce(static_cast<int>(each), std::move(all[each].sent.front()));
            all[each].sent.pop_front();
          }
        }
        coordinator.release_evicted(slowest);
        for (Schedule& next : due(coordinator, generator() % 2 == 0 ? kLate : 0)) {
          schedule.push_back(std::move(next));
          if (schedule.back().type == ScheduleType::kEvict) {
            coordinator.eviction_published(schedule.size());
          }
        }
      }
    }
  }
  for (const SimulatedRank& rank : all) CHECK(rank.executed == all[0].executed);
  CHECK(coordinator.incomplete().empty());
}

}  // namespace

TEST(ranks_execute_everything_once_and_in_one_order) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) simulate(seed);
}

}  // namespace hvdtune::testing::test_coordinator
