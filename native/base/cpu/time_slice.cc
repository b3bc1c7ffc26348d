#include "base/cpu/time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace hvdtune {
namespace {

/// Several times the kernel's default of 0.7 to 3 ms; the kernel accepts up to 100 ms.
constexpr std::uint64_t kSlice = 20'000'000;  // ns

/// The kernel's struct sched_attr, in its first version; C libraries have it since 2024.
struct Attributes {
  std::uint32_t size = sizeof(Attributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // of an ordinary thread: the length of its slices; 0 = the kernel's
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(Attributes) == 48);

}  // namespace

void give_way_to_others() noexcept {
  Attributes own;
  if (syscall(SYS_sched_getattr, 0, &own, sizeof(own), 0) != 0 || own.policy != SCHED_OTHER) return;
  own.size = sizeof(own);
  own.runtime = kSlice;
  syscall(SYS_sched_setattr, 0, &own, 0);
}

}  // namespace hvdtune
