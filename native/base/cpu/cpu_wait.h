#pragma once

#include <optional>

#include "base/clock.h"

namespace hvdtune {

/// How long a thread has been ready to run and had no CPU, since it began, by the kernel's count
/// (schedstat of proc(5)). Nothing where the kernel does not count it, and before the thread's
/// first turn on a CPU. Takes some microseconds.
[[nodiscard]] std::optional<Nanos> cpu_wait_of_main_thread(int pid);
/// The same; the thread keeps the file open, so that from its second time on it takes less than
/// one.
[[nodiscard]] std::optional<Nanos> cpu_wait_of_this_thread();

}  // namespace hvdtune
