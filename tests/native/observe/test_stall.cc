#include "observe/status/stall.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_stall {
namespace {

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MSG(text.find(part) != std::string::npos, "no <" << part << "> in <" << text << ">");
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

TEST(absence_report_says_that_all_have_submitted) {
  const RankState stopped{.rank = 2, .pid = 7, .last_operation = "a", .process_state = "stopped"};
  const std::string report = absence_report({{"a", 70 * kSecond, {2}}}, {stopped}, 60, 65);
  check_contains(report, "submitted by all ranks");
  check_contains(report, "more than 60 seconds");
  check_contains(report, "\nMissing ranks:\n2!: [a]\nRank 2: pid 7, process stopped");
  check_contains(report, "the job is shut down");
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

TEST(report_groups_what_the_same_ranks_wait_for) {
  std::vector<StalledTensor> stalled;
  const std::vector<int> waiting{0, 1, 2, 4, 5, 6, 7};
  for (const char* name : {"c", "a", "b"}) stalled.push_back({name, 61 * kSecond, {3}, waiting});
  stalled.push_back({"z", 5 * kSecond, {0, 1, 3}, {7}});
  const std::string report = stall_report(stalled, {}, 1, 0);
  check_contains(report,
                 "\nRanks 0-2,4-7 wait for 3 tensors (a, b, c) since 61 s; missing: rank 3.\n");
  check_contains(report,
                 "\nRank 7 waits for tensor z since 5.0 s; missing: ranks 0,1,3.\nMissing ranks:");
}

TEST(of_ranks_that_wait_for_one_another_the_last_is_to_be_looked_at) {
  // Ranks 0 and 1 wait for 2, which is in another process set's operation and waits for 3.
  const StalledTensor all{"a", 61 * kSecond, {2, 3}, {0, 1}};
  const StalledTensor set{"b", 62 * kSecond, {3}, {2}};
  check_contains(stall_report({all, set}, {}, 60, 0),
                 "\nLook at rank 3 first: it waits for nobody.");
  const StalledTensor more{"b", 62 * kSecond, {3, 4}, {2}};
  check_contains(stall_report({all, more}, {}, 60, 0),
                 "\nLook at ranks 3,4 first: they wait for nobody.");
  // Nothing to say: it is the only one, or they wait for each other.
  const StalledTensor back{"c", 61 * kSecond, {0}, {1}};
  const StalledTensor forth{"d", 61 * kSecond, {1}, {0}};
  for (const auto& stalled : {std::vector{all}, std::vector{set}, std::vector{back, forth}}) {
    CHECK(stall_report(stalled, {}, 60, 0).find("Look at") == std::string::npos);
  }
}

TEST(a_report_of_a_large_stall_fits_a_screen) {
  std::vector<StalledTensor> stalled;
  std::vector<int> waiting;
  for (int rank = 0; rank < 60; ++rank) waiting.push_back(rank);
  const std::vector<int> missing{60, 61, 62, 63};
  for (int i = 0; i < 118; ++i) {
    stalled.push_back({"gradient." + std::to_string(1000 + i), kSecond, missing, waiting});
  }
  std::string stack = "main thread (most recent call last):\n";
  for (int i = 0; i < 100; ++i) stack += "  frame " + std::to_string(i) + "\n";
  stack += "thread loader (most recent call last):\n  not of interest\n";
  std::vector<RankState> states;
  for (const int rank : missing) {
    states.push_back({.rank = rank, .pid = rank, .last_operation = "x", .python_stack = stack});
  }
  const std::string report = stall_report(stalled, states, 1, 0);
  check_contains(report, "Ranks 0-59 wait for 118 tensors (gradient.1000, ");
  check_contains(report, "gradient.1005 and 112 more) since 1.0 s; missing: ranks 60-63.");
  check_contains(report, "main thread (most recent call last):\n      ...\n      frame 84\n");
  check_contains(report, "frame 99");
  check_contains(report, "Rank 61: pid 61, last submitted x; its Python stack is that of rank 60");
  CHECK(report.find("not of interest") == std::string::npos);
  CHECK(std::count(report.begin(), report.end(), '\n') < 40);
}

TEST(ranges_of_ranks) {
  CHECK_EQ(ranges_text({0, 1, 2, 4}), std::string("0-2,4"));
  CHECK_EQ(ranges_text({0, 1, 3, 4}), std::string("0,1,3,4"));
  CHECK_EQ(ranges_text({5}), std::string("5"));
  CHECK_EQ(ranges_text({}), std::string());
}

TEST(silence_of_rank_0_is_told_by_another) {
  const RankState stopped{.rank = 0, .host = "b", .pid = 7, .process_state = "stopped"};
  const std::string report = silence_report(2, {"b", "a"}, 91 * kSecond, stopped, false);
  check_contains(report, "does not go on; rank 2 waits for 2 tensors (a, b) since 91 s");
  check_contains(report, "\nRank 0: host b, pid 7, process stopped");
  CHECK(report.find("shut down") == std::string::npos);
  check_contains(silence_report(2, {}, 91 * kSecond, stopped, true), "the job is shut down");
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
}  // namespace hvdtune::testing::test_stall
