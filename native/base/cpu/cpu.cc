#include "base/cpu/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace hvdtune {
namespace {

namespace fs = std::filesystem;

/// Adds `group`, below `root`, and every group above it up to `root` itself.
void add_groups(const fs::path& root, const fs::path& group, std::vector<fs::path>& groups) {
  const fs::path relative = group.relative_path().lexically_normal();
  // A container sees ".." in place of a group outside of it: only the mount's own files can be
  // read.
  if (!relative.empty() && *relative.begin() != "..") {
    for (fs::path at = relative; !at.empty(); at = at.parent_path()) groups.push_back(root / at);
  }
  groups.push_back(root);
}

/// The directories whose quotas apply, from lines "number:controllers:/group" of /proc/self/cgroup.
/// Version 2 has no controllers and one tree; version 1 has a tree for each mount of controllers.
std::vector<fs::path> control_groups(const fs::path& membership, const fs::path& mount) {
  std::vector<fs::path> groups;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      add_groups(mount, group, groups);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      add_groups(mount / controllers, group, groups);
      add_groups(mount / "cpu", group, groups);  // the usual link, whatever the name of the mount
    }
  }
  if (groups.empty()) groups = {mount, mount / "cpu"};
  return groups;
}

/// CPUs that one group grants, if it sets a limit.
std::optional<double> quota_of(const fs::path& group) {
  double quota = 0;
  double period = 0;
  std::string limit;
  if (std::ifstream v2(group / "cpu.max"); v2 >> limit >> period) {
    quota = std::atof(limit.c_str());                                      // 0 for "max"
  } else if (std::ifstream v1(group / "cpu.cfs_quota_us"); v1 >> quota) {  // -1: no limit
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// CPUs in the affinity mask; at least 1.
int affine_cpus() {
  // The kernel refuses a mask that is shorter than its own.
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const std::size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      return std::max(1, CPU_COUNT_S(bytes, mask.data()));
    }
  }
  return 1;
}

}  // namespace

std::optional<double> cgroup_quota(const fs::path& membership, const fs::path& mount) {
  std::optional<double> least;
  for (const fs::path& group : control_groups(membership, mount)) {
    const std::optional<double> quota = quota_of(group);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int usable_cpus() {
  const int cpus = affine_cpus();
  const std::optional<double> quota = cgroup_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (!quota || *quota >= cpus) return cpus;
  return std::max(1, static_cast<int>(std::ceil(*quota)));
}

bool pin_this_thread(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace hvdtune
