#pragma once

#include <time.h>

#include <cstdint>

namespace hvdtune {

/// Nanoseconds of CLOCK_MONOTONIC: one clock for all processes of a host.
using Nanos = std::int64_t;

inline constexpr Nanos kMicrosecond = 1000;
inline constexpr Nanos kMillisecond = 1000 * kMicrosecond;
inline constexpr Nanos kSecond = 1000 * kMillisecond;
/// "Never": later than any deadline.
inline constexpr Nanos kForever = INT64_MAX;

/// Another clock seen from this one: the other shows `local` + `offset`, give or take `bound`.
struct ClockReading {
  Nanos local = 0;
  Nanos offset = 0;
  Nanos bound = 0;
};

inline Nanos monotonic_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

/// CPU time of all threads of this process so far.
inline Nanos process_cpu_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

/// CPU time so far of the thread whose clock that is, by pthread_getcpuclockid; 0 if it has ended.
inline Nanos thread_cpu_now(clockid_t thread) {
  timespec now{};
  clock_gettime(thread, &now);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

/// CPU time of the calling thread so far.
inline Nanos thread_cpu_now() { return thread_cpu_now(CLOCK_THREAD_CPUTIME_ID); }

/// Nanoseconds since the epoch, for anchoring a trace in wall-clock time.
inline Nanos wall_clock_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

}  // namespace hvdtune
