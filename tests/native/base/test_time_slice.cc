#include "base/cpu/time_slice.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

#include "check.h"

namespace hvdtune::testing::test_time_slice {
namespace {

/// struct sched_attr of the kernel, as far as it is looked at.
struct Scheduling {
  std::uint32_t size = 0;
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t slice = 0;
  std::array<std::uint64_t, 2> rest{};
};

Scheduling of_this_thread() {
  Scheduling own;
  CHECK_EQ(syscall(SYS_sched_getattr, 0, &own, sizeof(own), 0), 0);
  return own;
}

TEST(a_thread_that_gives_way_has_long_slices_and_nothing_else_changes) {
  const Scheduling others = of_this_thread();
  Scheduling before;
  Scheduling after;
  std::thread thread([&] {
    CHECK_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 3), 0);
    before = of_this_thread();
    give_way_to_others();
    after = of_this_thread();
  });
  thread.join();
  CHECK_EQ(after.policy, before.policy);
  CHECK_EQ(after.nice, 3);
  CHECK_EQ(of_this_thread().slice, others.slice);
  if (before.slice == 0) return;  // before Linux 6.12: it has no slices of a thread's own
  CHECK(after.slice > 5 * before.slice);
}

TEST(a_thread_of_another_policy_stays_as_it_is) {
  std::thread thread([] {
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) return;
    const Scheduling before = of_this_thread();
    give_way_to_others();
    CHECK_EQ(of_this_thread().policy, static_cast<std::uint32_t>(SCHED_IDLE));
    CHECK_EQ(of_this_thread().slice, before.slice);
  });
  thread.join();
}

}  // namespace
}  // namespace hvdtune::testing::test_time_slice
