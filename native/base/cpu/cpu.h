#pragma once

#include <filesystem>
#include <optional>

namespace hvdtune {

/// CPUs that this process may use, at least 1: its affinity mask, limited by the tightest quota of
/// its control groups; a fraction of a CPU counts as one. Reads files; remember the answer.
int usable_cpus();

/// CPUs granted by the tightest quota between this process's control group and the root; none if
/// there is no limit. `membership` is /proc/self/cgroup, `mount` /sys/fs/cgroup, of version 1 or 2.
/// Inside a container the groups that it names may not exist below `mount`; the mount's own files
/// are read then.
std::optional<double> cgroup_quota(const std::filesystem::path& membership,
                                   const std::filesystem::path& mount);

/// Pins the calling thread to one CPU. False when the kernel refuses (no such CPU, not allowed).
bool pin_this_thread(int cpu);

}  // namespace hvdtune
