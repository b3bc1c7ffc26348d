#pragma once

#include <string>

namespace hvdtune {

/// The namespace of a process's clocks: processes of one host have the same CLOCK_MONOTONIC if
/// this is equal. `pid`: 0 = this process. Empty where the kernel knows no such namespaces, or
/// does not tell this process.
std::string time_space(int pid = 0);

}  // namespace hvdtune
