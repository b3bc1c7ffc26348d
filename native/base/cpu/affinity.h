#pragma once

#include <cstdint>
#include <vector>

namespace hvdtune {

/// The CPUs that one process may use, in a form that processes of a host can compare.
struct CpuShare {
  std::vector<std::uint64_t> mask;  ///< affinity, one bit per CPU
  int usable = 1;  ///< usable_cpus(): the mask's CPUs, limited by the cgroup's quota
};

CpuShare this_cpu_share();

/// Number of CPUs that processes with these shares have together. A CPU that several of them may
/// use counts once. A quota that limits one process is assumed to limit all: they run in one
/// container.
int cpus_together(const std::vector<CpuShare>& shares);

}  // namespace hvdtune
