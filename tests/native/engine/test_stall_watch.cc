// Which waiting tensors the stall check tells of, and whose stacks it asks for.
#include "engine/coordination/stall_watch.h"

#include <string>
#include <vector>

#include "check.h"
#include "engine_job.h"

namespace hvdtune::testing::test_stall_watch {
namespace {

constexpr int kRanks = 4;
/// Times count from here: the coordinator's own clock plays no part.
constexpr Nanos kBegin = 1000 * kSecond;

Coordinator make_coordinator() {
  return {CoordinatorOptions{}, {{0, 1, 2, 3}, {1, 2}}, wire::RuntimeSettings{}};
}

std::vector<PeerInfo> peers() {
  std::vector<PeerInfo> all;
  // Processes elsewhere: whether they run, this host cannot know.
  for (int rank = 0; rank < kRanks; ++rank) {
    all.push_back({"host" + std::to_string(rank), 100 + rank, false});
  }
  return all;
}

StallWatch make_watch(Nanos shutdown = 0) { return {{true, 60 * kSecond, shutdown}, peers()}; }

void announce(Coordinator& coordinator, const std::string& name, const std::vector<int>& ranks,
              Nanos time, std::uint32_t set = 0) {
  for (const int rank : ranks) {
    wire::Announce announce;
    announce.type = wire::AnnounceType::kRequest;
    announce.time = time;
    announce.ticket = 1;
    announce.request.emplace();
    announce.request->name = name;
    announce.request->process_set = set;
    announce.request->tensors = {{DType::kFloat32, {4}}};
    coordinator.announce(rank, std::move(announce));
  }
}

void join(Coordinator& coordinator, int rank) {
  wire::Announce announce;
  announce.type = wire::AnnounceType::kRequest;
  announce.request.emplace();
  announce.request->kind = OpKind::kJoin;
  announce.request->name = "join";
  coordinator.announce(rank, std::move(announce));
}

void check_lacks(const std::string& text, const std::string& part) {
  CHECK_MSG(text.find(part) == std::string::npos, "\"" << text << "\" has \"" << part << "\"");
}

/// Asks, and words the report when there was time to answer.
StallVerdict report_at(StallWatch& watch, const Coordinator& coordinator, Nanos now) {
  const StallVerdict asks = watch.check(coordinator, now);
  CHECK(!asks.ask_stacks_of.empty());
  CHECK_EQ(asks.report, "");
  return watch.check(coordinator, now + 2 * kSecond);
}

TEST(only_what_waits_for_longer_than_the_limit_is_told) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch();
  announce(coordinator, "old", {0, 1, 3}, kBegin);
  announce(coordinator, "young", {0, 2}, kBegin + 30 * kSecond);
  announce(coordinator, "complete", {0, 1, 2, 3}, kBegin);
  const StallVerdict before = watch.check(coordinator, kBegin + 59 * kSecond);
  CHECK(before.ask_stacks_of.empty());
  CHECK_EQ(before.tensors, 0U);

  const StallVerdict asks = watch.check(coordinator, kBegin + 61 * kSecond);
  CHECK(asks.ask_stacks_of == (std::vector<int>{2}));  // not 1 and 3, which "young" waits for
  CHECK_EQ(asks.tensors, 1U);
  const StallVerdict told = watch.check(coordinator, kBegin + 62 * kSecond);
  check_contains(told.report, "tensor old");
  check_contains(told.report, "missing: rank 2.");
  check_contains(told.report, "Rank 2: host host2, pid 102");
  check_contains(told.report, "last submitted complete 62 s ago");
  for (const char* other : {"young", "tensor complete", "Rank 1:", "Rank 3:"}) {
    check_lacks(told.report, other);
  }
  CHECK(!told.shut_down);
}

TEST(before_the_first_step_is_over_it_may_be_a_start) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch();
  announce(coordinator, "a", {0, 1, 3}, kBegin);
  check_contains(report_at(watch, coordinator, kBegin + 61 * kSecond).report, "one-time start");

  coordinator.steps().tensor("b", true, 1, 4, kBegin, 0);
  check_contains(report_at(watch, coordinator, kBegin + 200 * kSecond).report, "one-time start");
  coordinator.steps().tensor("b", true, 1, 4, kBegin + kSecond, 0);
  check_lacks(report_at(watch, coordinator, kBegin + 400 * kSecond).report, "one-time start");
}

TEST(ranks_outside_a_process_set_or_joined_are_not_missing) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch();
  announce(coordinator, "of the set", {1}, kBegin, 1);
  announce(coordinator, "of all", {0, 1}, kBegin);
  join(coordinator, 3);
  const StallVerdict asks = watch.check(coordinator, kBegin + 61 * kSecond);
  CHECK_EQ(asks.tensors, 2U);
  CHECK(asks.ask_stacks_of == (std::vector<int>{2}));
}

TEST(answers_to_earlier_questions_and_of_ranks_that_were_not_asked_are_passed_over) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch();
  announce(coordinator, "a", {0, 1}, kBegin);
  const StallVerdict first = watch.check(coordinator, kBegin + 61 * kSecond);
  CHECK(first.ask_stacks_of == (std::vector<int>{2, 3}));
  check_contains(watch.check(coordinator, kBegin + 63 * kSecond).report, "is not known");

  const StallVerdict second = watch.check(coordinator, kBegin + 130 * kSecond);
  CHECK(second.question != first.question);
  const Nanos patience = watch.deadline();
  watch.stack_of(2, first.question, "what it did a minute ago");
  watch.stack_of(3, first.question, "what it did a minute ago");
  CHECK_EQ(watch.deadline(), patience);  // still waited for
  watch.stack_of(1, second.question, "nobody asked for this");
  watch.stack_of(2, second.question, "what it does now");
  CHECK_EQ(watch.deadline(), patience);
  watch.stack_of(3, second.question, "the same");
  CHECK_EQ(watch.deadline(), 0);  // all that were asked have answered
  const StallVerdict told = watch.check(coordinator, kBegin + 131 * kSecond);
  check_contains(told.report, "what it does now");
  check_lacks(told.report, "a minute ago");
  check_lacks(told.report, "nobody asked");
}

TEST(what_came_while_stacks_were_asked_for_is_not_told) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch();
  announce(coordinator, "a", {0, 1, 2}, kBegin);
  announce(coordinator, "b", {0, 2, 3}, kBegin);
  CHECK(!watch.check(coordinator, kBegin + 61 * kSecond).ask_stacks_of.empty());
  announce(coordinator, "a", {3}, kBegin + 61 * kSecond);
  const StallVerdict told = watch.check(coordinator, kBegin + 62 * kSecond);
  check_contains(told.report, "tensor b");
  check_contains(told.report, "missing: rank 1.");
  check_lacks(told.report, "Rank 3:");

  Coordinator other = make_coordinator();
  StallWatch fresh = make_watch();
  announce(other, "a", {0, 1, 2}, kBegin);
  CHECK(!fresh.check(other, kBegin + 61 * kSecond).ask_stacks_of.empty());
  announce(other, "a", {3}, kBegin + 61 * kSecond);
  const StallVerdict nothing = fresh.check(other, kBegin + 62 * kSecond);
  CHECK_EQ(nothing.report, "");
  CHECK_EQ(nothing.tensors, 0U);
}

TEST(a_stall_is_told_once_a_period_until_it_ends_the_job) {
  Coordinator coordinator = make_coordinator();
  StallWatch watch = make_watch(150 * kSecond);
  announce(coordinator, "a", {0, 1, 2}, kBegin);
  CHECK(!report_at(watch, coordinator, kBegin + 61 * kSecond).report.empty());
  // Looked for twice a period, so that nothing is told half a period late.
  CHECK_EQ(watch.deadline(), kBegin + 93 * kSecond);
  const StallVerdict between = watch.check(coordinator, watch.deadline());
  CHECK(between.ask_stacks_of.empty());
  CHECK_EQ(between.report, "");
  CHECK_EQ(between.tensors, 1U);
  const StallVerdict second = report_at(watch, coordinator, kBegin + 124 * kSecond);
  CHECK(!second.report.empty());
  CHECK(!second.shut_down);
  const StallVerdict last = report_at(watch, coordinator, kBegin + 187 * kSecond);
  CHECK(last.shut_down);
  check_contains(last.report, "the job is shut down");
}

TEST(a_check_that_is_off_is_never_due) {
  CHECK_EQ(StallWatch({false, 60 * kSecond, 0}, peers()).deadline(), kForever);
  CHECK_EQ(StallWatch({true, 0, 0}, peers()).deadline(), kForever);
  CHECK(make_watch().deadline() < kForever);
}

}  // namespace
}  // namespace hvdtune::testing::test_stall_watch
