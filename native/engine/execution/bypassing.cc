// Short batches that bypass NCCL: which batches, and whether the members can do it.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/execution/device_executor.h"

namespace hvdtune {

/// Connects a bypass for each NCCL lane, once it may be needed. Collective: the limit, and whether
/// it was needed before, are the same on all members at each call.
void DeviceExecutor::connect_bypasses(Way& way, Communicator& host) {
  if (!way.by_nccl || (bypass_limit_ <= 0 && !gpus_.options().tunes_bypass)) return;
  for (std::size_t lane = way.bypasses.size(); lane < way.communicators.size(); ++lane) {
    way.bypasses.emplace_back();
    // If it has failed for one lane, it fails for all.
    if (lane > 0 && !way.bypasses.front()) continue;
    try {
      way.bypasses.back() = std::make_shared<BypassCommunicator>(
          way.communicators[lane], PeerAllreduce::connect(host, gpus_.in_use(), kernels_));
      remember(way.bypasses.back());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;  // not all members know it
      if (host.index() != 0 || std::exchange(told_no_bypass_, true)) continue;
      const std::string text = std::string("short batches also use NCCL: ") + error.what();
      if (bypass_limit_ > 0) {
        HVD_LOG_RANK(kWarning, rank_) << text;
      } else {
        HVD_LOG_RANK(kInfo, rank_) << text;
      }
    }
  }
}

bool DeviceExecutor::can_bypass() const {
  return !ways_.empty() && ways_.front() && !ways_.front()->bypasses.empty() &&
         ways_.front()->bypasses.front();
}

/// The communicator for a batch's data: the same on all members, as they know the same
/// descriptions.
std::shared_ptr<DeviceCommunicator> DeviceExecutor::exchange_for(
    const Way& way, std::size_t lane, const std::vector<OperationPtr>& operations,
    Communicator& host) const {
  if (operations.front()->request.kind != OpKind::kAllreduce) return way.communicators[lane];
  if (lane < way.bypasses.size() && way.bypasses[lane]) {
    std::int64_t bytes = 0;
    for (const OperationPtr& operation : operations) {
      for (const wire::TensorSpec& tensor : operation->request.tensors) bytes += tensor.bytes();
    }
    if (bytes <= bypass_limit_) return way.bypasses[lane];
  }
  if (host.hosts_first() && lane < way.hierarchies.size() && way.hierarchies[lane]) {
    return way.hierarchies[lane];
  }
  return way.communicators[lane];
}

}  // namespace hvdtune
