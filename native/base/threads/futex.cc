#include "base/threads/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hvdtune {

void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, Nanos deadline,
                std::uint32_t channels) {
  timespec until{};
  timespec* timeout = nullptr;
  if (deadline != kForever) {
    until.tv_sec = deadline / kSecond;
    until.tv_nsec = deadline % kSecond;
    timeout = &until;
  }
  // The BITSET form takes an absolute deadline, so a spurious wake-up does not prolong the wait.
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(word), FUTEX_WAIT_BITSET, expected,
          timeout, nullptr, channels);
}

void futex_wake(const std::atomic<std::uint32_t>* word, int count, std::uint32_t channels) {
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(word), FUTEX_WAKE_BITSET, count,
          nullptr, nullptr, channels);
}

}  // namespace hvdtune
