// Short batches past NCCL: which they are, and whether there is a way for them.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/execution/device_executor.h"

namespace hvdtune {

/// For each lane that NCCL has, once somebody may want it. Collective: the limit is the same on all
/// members whenever they come here, and so is what has been asked before.
void DeviceExecutor::connect_bypasses(Way& way, Communicator& host) {
  if (!way.by_nccl || (bypass_limit_ <= 0 && !gpus_.options().tunes_bypass)) return;
  for (std::size_t lane = way.bypasses.size(); lane < way.communicators.size(); ++lane) {
    way.bypasses.emplace_back();
    // What has kept the members from it for one lane does so for all.
    if (lane > 0 && !way.bypasses.front()) continue;
    try {
      way.bypasses.back() = std::make_shared<BypassCommunicator>(
          way.communicators[lane], PeerAllreduce::connect(host, gpus_.in_use(), kernels_));
      remember(way.bypasses.back());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;  // not all members know it
      if (host.index() != 0 || std::exchange(told_no_bypass_, true)) continue;
      const std::string text = std::string("short batches go by NCCL, too: ") + error.what();
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

/// What moves a batch's data: the same on all members, as they know the same descriptions.
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
