#include "observe/stragglers/cpu_waits.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/cpu/cpu_wait.h"
#include "check.h"

namespace hvdtune::testing::test_cpu_waits {
namespace {

TEST(who_shares_a_cpu_waits_and_who_sleeps_does_not) {
  if (!cpu_wait_of_this_thread()) return;  // such a kernel
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  std::vector<int> pids;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // it would go on for ever
      sched_setaffinity(0, sizeof(one), &one);
      for (;;) {
        if (i < 2) pause();  // the first two sleep, the others want the same CPU
      }
    }
    pids.push_back(child);
  }
  // Nothing is told of a thread before its first turn on a CPU.
  const auto has_run = [](int pid) { return cpu_wait_of_main_thread(pid).has_value(); };
  while (!std::all_of(pids.begin(), pids.end(), has_run)) usleep(1000);
  CpuWaits waits(pids);
  waits.step_ended(10);
  Nanos excess = 0;
  for (int i = 0; i < 600 && excess < kMillisecond; ++i) {
    usleep(50'000);
    excess = waits.excess(3, 20);
  }
  CHECK(excess >= kMillisecond);
  CHECK(waits.excess(0, 20) <= 0);
  CHECK_EQ(waits.excess(3, 10), Nanos{0});  // no step since
  for (const int pid : pids) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  CHECK_EQ(waits.excess(3, 20), Nanos{0});  // they are gone
}

TEST(a_look_is_taken_now_and_then_and_an_old_one_is_forgotten) {
  constexpr std::uint64_t every = CpuWaits::kEvery;
  CpuWaits waits({getpid()});
  waits.step_ended(10);
  CHECK_EQ(waits.since(), std::uint64_t{10});
  waits.step_ended(10 + every - 1);  // too soon
  waits.step_ended(10 + every);
  CHECK_EQ(waits.since(), std::uint64_t{10});
  waits.step_ended(10 + 2 * every);
  CHECK_EQ(waits.since(), 10 + every);
  waits.step_ended(10 + 4 * every);  // nobody was late in between
  CHECK_EQ(waits.since(), 10 + 4 * every);
}

TEST(nothing_is_known_before_the_first_sample) {
  const CpuWaits waits({getpid()});
  CHECK_EQ(waits.excess(0, 5), Nanos{0});
  CHECK_EQ(waits.since(), std::uint64_t{0});
}

}  // namespace
}  // namespace hvdtune::testing::test_cpu_waits
