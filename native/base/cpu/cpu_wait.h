#pragma once

#include <optional>

#include "base/clock.h"

namespace hvdtune {

/// How long a thread has been ready to run but had no CPU since it began, as the kernel counts it
/// (schedstat of proc(5)). Nothing if the kernel does not count it, or before the thread's first
/// turn on a CPU. Takes a few microseconds.
[[nodiscard]] std::optional<Nanos> cpu_wait_of_main_thread(int pid);
/// The same; the thread keeps the file open, so that its later calls take less than a microsecond.
[[nodiscard]] std::optional<Nanos> cpu_wait_of_this_thread();

}  // namespace hvdtune
