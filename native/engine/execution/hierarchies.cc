// Allreduces of GPUs of several hosts that run within each host first.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "collective/exchange_texts.h"
#include "engine/execution/device_executor.h"

namespace hvdtune {

/// Connects a hierarchy for each NCCL lane, before the first such batch. Collective: all members
/// have the same hosts, and change the setting at the same place in the schedule.
void DeviceExecutor::connect_hierarchies(Way& way, Communicator& host) {
  if (!way.by_nccl) return;
  const std::optional<HostsFirst> hosts = host.hosts_first();
  if (!hosts || way.hierarchies.size() >= way.communicators.size()) return;
  if (connecting_ == 0) connecting_ = monotonic_now();
  for (std::size_t lane = way.hierarchies.size(); lane < way.communicators.size(); ++lane) {
    way.hierarchies.emplace_back();
    // If it has failed for one lane, it fails for all.
    if (lane > 0 && !way.hierarchies.front()) continue;
    std::string problem;
    way.hierarchies.back() = connect_hierarchy(way.communicators[lane], *hosts, host, problem);
    if (!way.hierarchies.back()) {
      if (host.index() == 0) {
        HVD_LOG_RANK(kWarning, rank_)
            << "allreduces on GPUs do not run within each host first: " << problem;
      }
      continue;
    }
    remember(way.hierarchies.back());
    if (lane < way.buffers.size() && way.buffers[lane].piece().bytes > 0) {
      way.hierarchies.back()->enroll(way.buffers[lane].piece());
    }
  }
  connected_ = monotonic_now();
}

/// Null, with the reason, on all members alike, if that is not possible.
std::shared_ptr<HierarchicalDeviceCommunicator> DeviceExecutor::connect_hierarchy(
    const std::shared_ptr<DeviceCommunicator>& flat, const HostsFirst& hosts, Communicator& host,
    std::string& problem) {
  // It may fail on some hosts, or columns, and succeed on others.
  const auto attempt = [&](auto&& connect) {
    problem.clear();
    try {
      connect();
    } catch (const Error& error) {
      if (aborted_()) throw;
      problem = error.what();
    }
    problem = first_problem(host, problem);
    return problem.empty();
  };
  std::unique_ptr<DeviceCommunicator> within;
  if (!attempt([&] { within = connect_by_nccl(hosts.within); })) return nullptr;
  std::unique_ptr<ColumnAllreduce> between;
  const bool by_nccl = gpus_.options().between_by_nccl;
  // No other code checks NCCL while the caller waits.
  const auto why_not = [aborted = aborted_, nccl = within.get()] {
    std::optional<std::string> why = aborted();
    return why ? why : nccl->failure();
  };
  const auto connect_column = [&] {
    between = by_nccl ? make_column_on_gpus(connect_by_nccl(hosts.between))
                      : make_column_through_hosts(hosts.between, gpus_.in_use(), why_not);
  };
  if (!attempt(connect_column)) return nullptr;
  return std::make_shared<HierarchicalDeviceCommunicator>(flat, std::move(within),
                                                          std::move(between));
}

}  // namespace hvdtune
