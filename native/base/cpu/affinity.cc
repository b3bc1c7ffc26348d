#include "base/cpu/affinity.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/cpu/cpu.h"

namespace hvdtune {
namespace {

int count(const std::vector<std::uint64_t>& mask) {
  int cpus = 0;
  for (const std::uint64_t word : mask) cpus += std::popcount(word);
  return cpus;
}

}  // namespace

CpuShare this_cpu_share() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CpuShare share;
  share.usable = usable_cpus();
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return share;
  share.mask.resize(sizeof(set) / sizeof(std::uint64_t));
  std::memcpy(share.mask.data(), &set, sizeof(set));
  return share;
}

int cpus_together(const std::vector<CpuShare>& shares) {
  std::vector<std::uint64_t> together;
  int quota = INT32_MAX;
  for (const CpuShare& share : shares) {
    if (together.size() < share.mask.size()) together.resize(share.mask.size(), 0);
    for (std::size_t i = 0; i < share.mask.size(); ++i) together[i] |= share.mask[i];
    if (share.usable < count(share.mask)) quota = std::min(quota, share.usable);
  }
  return std::max(1, std::min(count(together), quota));
}

}  // namespace hvdtune
