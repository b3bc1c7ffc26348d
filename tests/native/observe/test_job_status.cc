// What a job's status says of a mean step when some took long, but once, and of stalls.
#include "observe/status/job_status.h"

#include <string>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_job_status {
namespace {

/// The status after steps of these durations.
std::string status_of(const std::vector<Nanos>& durations) {
  JobStatus status({0, 0});
  const StragglerWatch stragglers({}, {0, 0});
  Nanos now = monotonic_now() + 7 * kSecond;  // the first step, which nobody sees begin, ends
  std::uint64_t index = 1;
  for (const Nanos duration : durations) {
    now += duration;
    status.step({.index = index++, .end = now, .duration = duration}, 0, stragglers);
  }
  return status.json(now);
}

void check_says(const std::vector<Nanos>& durations, const std::string& part) {
  const std::string text = status_of(durations);
  CHECK_MSG(text.find(part) != std::string::npos, "no <" << part << "> in <" << text << ">");
}

std::vector<Nanos> steps(std::size_t count, const std::vector<std::size_t>& long_ones) {
  std::vector<Nanos> durations(count, 100 * kMillisecond);
  for (const std::size_t at : long_ones) durations[at] = 5 * kSecond;
  return durations;
}

TEST(a_start_is_in_no_rate) {
  for (const std::size_t at : {0U, 1U, 2U, 20U, 29U}) {
    check_says(steps(30, {at}), "\"step_s\":0.1,");
  }
  check_says(steps(30, {}), "\"one_time_s\":0,");
  check_says(steps(30, {20}), "\"one_time_s\":5,");
  check_says(steps(30, {}), "\"start_s\":7");
}

TEST(what_comes_again_and_again_is_in_the_rate) {
  check_says(steps(40, {10, 20, 30}), "\"one_time_s\":0,");
  const std::string text = status_of(steps(40, {10, 20, 30}));
  CHECK_MSG(text.find("\"step_s\":0.1,") == std::string::npos, text);
}

TEST(steps_that_all_take_long_are_no_starts) {
  check_says(std::vector<Nanos>(10, 5 * kSecond), "\"step_s\":5,");
}

TEST(every_rank_has_the_chance_that_it_is_not_to_blame) {
  JobStatus status({0, 0});
  StragglerWatch stragglers({}, {0, 0});
  Nanos now = kSecond;
  for (std::uint64_t step = 1; step <= 21; ++step) {  // of the first the duration is not known
    now += 10 * kMillisecond;
    stragglers.announced(0, now);
    now += 5 * kMillisecond;
    stragglers.announced(1, now);
    stragglers.complete(1, now, StragglerWatch::Awaited::kOnItsHost);
    (void)stragglers.end_step(step, now);
    status.step({.index = step, .end = now, .duration = 15 * kMillisecond}, 0, stragglers);
  }
  const std::string text = status.json(now);
  const std::size_t first = text.find("\"chance\":1}");
  CHECK_MSG(first != std::string::npos, text);
  CHECK_MSG(text.find("\"chance\":1.9", first) != std::string::npos, text);  // 2 / 2^20
}

TEST(a_stalled_gpu_and_stalled_ranks_end_by_themselves) {
  using Cause = JobStatus::StallCause;
  JobStatus status({0, 0});
  const auto says = [&status](const std::string& part) {
    const std::string text = status.json(monotonic_now());
    CHECK_MSG(text.find(part) != std::string::npos, "no <" << part << "> in <" << text << ">");
  };
  status.stalled(Cause::kGpu, "the GPU works", 2, monotonic_now());
  status.stall_over(Cause::kRanks);
  says("\"stalled_tensors\":2,");
  says("\"stall\":\"the GPU works\"");
  status.stalled(Cause::kRanks, "rank 1 is missing", 3, monotonic_now());
  says("\"stalled_tensors\":5,");
  says("rank 1 is missing");
  status.stall_over(Cause::kGpu);
  says("\"stalled_tensors\":3,");
  says("\"stall\":\"rank 1 is missing\"");
  status.stall_over(Cause::kRanks);
  says("\"stall_reports\":2,\"stalled_tensors\":0,");
}

TEST(before_a_step_has_ended_nothing_is_known) { check_says({}, "\"start_s\":null"); }

}  // namespace
}  // namespace hvdtune::testing::test_job_status
