#pragma once

#include <string>

namespace hvdtune {

/// The time namespace of a process: processes of one host have the same CLOCK_MONOTONIC if this is
/// equal. `pid`: 0 = this process. Empty if the kernel has no time namespaces, or does not let this
/// process see it.
std::string time_space(int pid = 0);

}  // namespace hvdtune
