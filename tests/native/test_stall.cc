#include "observe/stall.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "check.h"

namespace hvdtune {
namespace {

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MSG(text.find(part) != std::string::npos, "no <" << part << "> in <" << text << ">");
}

TEST(check_is_due_once_a_period) {
  StallInspector inspector({.warning_seconds = 2}, 100 * kSecond);
  CHECK_EQ(inspector.next_check(), 102 * kSecond);
  CHECK(!inspector.due(102 * kSecond - 1));
  CHECK(inspector.due(102 * kSecond));
  CHECK(!inspector.due(102 * kSecond));
  CHECK(inspector.due(105 * kSecond));
  CHECK_EQ(inspector.next_check(), 107 * kSecond);
}

TEST(check_can_be_off) {
  StallInspector inspector({.enabled = false, .shutdown_seconds = 1}, 0);
  CHECK_EQ(inspector.next_check(), kForever);
  CHECK(!inspector.due(kForever - 1));
  CHECK_EQ(inspector.warning(), "");
}

TEST(period_of_zero_is_not_always_due) {
  StallInspector inspector({.warning_seconds = 0}, 0);
  CHECK(inspector.due(kSecond));
  CHECK(!inspector.due(kSecond));
}

TEST(only_old_tensors_are_stalled_and_only_older_ones_end_the_job) {
  const StallInspector inspector({.warning_seconds = 10, .shutdown_seconds = 30}, 0);
  const std::vector<WaitingTensor> waiting = {
      {"late", 0, {1}}, {"exact", kSecond, {2}}, {"early", -15 * kSecond, {1, 3}}};
  auto findings = inspector.inspect(11 * kSecond, waiting);
  CHECK_EQ(findings.stalled.size(), 2U);
  CHECK_EQ(findings.stalled[0].name, "early");
  CHECK_EQ(findings.stalled[0].waiting, 26 * kSecond);
  CHECK_EQ(findings.stalled[0].missing_ranks.size(), 2U);
  CHECK_EQ(findings.stalled[1].name, "late");
  CHECK(!findings.shutdown);
  CHECK(inspector.inspect(16 * kSecond, waiting).shutdown);
  CHECK(inspector.inspect(9 * kSecond, {}).stalled.empty());
}

TEST(shutdown_limit_below_the_warning_time_is_refused) {
  const StallInspector inspector({.warning_seconds = 60, .shutdown_seconds = 1.5}, 0);
  check_contains(inspector.warning(), "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (1.5) is less than");
  check_contains(inspector.warning(), "(60)");
  CHECK(!inspector.inspect(100 * kSecond, {{"a", 0, {0}}}).shutdown);
  const StallInspector equal({.warning_seconds = 60, .shutdown_seconds = 60}, 0);
  CHECK_EQ(equal.warning(), "");
  CHECK(equal.inspect(61 * kSecond, {{"a", 0, {0}}}).shutdown);
}

TEST(report_lists_missing_ranks_and_sorted_names) {
  const std::string report =
      stall_report({{"b", 61 * kSecond, {3, 1}}, {"a", 99 * kSecond, {3}}}, {}, 60, 90);
  check_contains(report, "only a subset of ranks");
  check_contains(report, "more than 60 seconds");
  check_contains(report, "\nMissing ranks:\n1: [b]\n3!: [a, b]\n");
  check_contains(report, "more than 90 seconds");
  check_contains(report, "shut down");
}

TEST(report_without_limit_marks_nothing) {
  const std::string report = stall_report({{"a", 1000 * kSecond, {2}}}, {}, 0.5, 0);
  check_contains(report, "more than 0.5 seconds");
  CHECK_MSG(report.ends_with("\nMissing ranks:\n2: [a]"), report);
}

TEST(report_shows_six_names_of_many) {
  std::vector<StalledTensor> stalled;
  for (const char c : std::string("gfedcba")) {
    stalled.push_back({std::string(1, c), 2 * kSecond, {0, c == 'g' ? 0 : 1}});
  }
  check_contains(stall_report(stalled, {}, 1, 0),
                 "\n0: [a, b, c, d, e, f ...]\n1: [a, b, c, d, e, f]");
}

TEST(report_says_what_is_known_of_each_rank) {
  const RankState known{.rank = 3,
                        .host = "b",
                        .pid = 4711,
                        .last_operation = "allreduce.x",
                        .since_last = 64 * kSecond,
                        .process_state = "stopped",
                        .python_stack = "train.py:12 in step\ntrain.py:40 in <module>\n"};
  const RankState unknown{.rank = 5};
  const std::string report = stall_report({{"a", 61 * kSecond, {3, 5}}}, {known, unknown}, 60, 0);
  check_contains(report,
                 "\nRank 3: host b, pid 4711, process stopped, last submitted allreduce.x 64 s "
                 "ago; its Python stack:\n    train.py:12 in step\n    train.py:40 in <module>\n"
                 "Rank 5: has submitted nothing yet; its Python stack is not known");
}

TEST(process_state_of_live_stopped_and_dead_processes) {
  CHECK_EQ(process_state_of(getpid()), "running");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, "a) Z (b");
    for (;;) pause();
  }
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  CHECK_EQ(process_state_of(child), "stopped");
  kill(child, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK_EQ(process_state_of(child), "dead");
  waitpid(child, &status, 0);
  CHECK_EQ(process_state_of(child), "gone");
}

}  // namespace
}  // namespace hvdtune
