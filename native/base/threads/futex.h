#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace hvdtune {

/// Sleeps while `*word == expected`, at most until `deadline` (monotonic; kForever = no limit).
/// Works across processes that map the same memory. May wake spuriously. `channels`: a bit mask;
/// only a wake-up that shares a bit with it wakes this thread.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, Nanos deadline,
                std::uint32_t channels = UINT32_MAX);

/// Wakes up to `count` sleepers of `word`, in any process, that wait on one of `channels`.
void futex_wake(const std::atomic<std::uint32_t>* word, int count,
                std::uint32_t channels = UINT32_MAX);

inline constexpr int kWakeAll = INT32_MAX;

/// Tells the CPU that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace hvdtune
