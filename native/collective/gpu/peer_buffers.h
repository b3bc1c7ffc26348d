#pragma once

#include <memory>
#include <vector>

#include "collective/communicator.h"
#include "device/ipc.h"

namespace hvdtune {

/// Device memory of every member, which all the others have opened. The members are ranks of one
/// host, each in its own process, on one GPU or on several with peer access.
class PeerBuffers {
 public:
  /// Collective over the members of `control`: `bytes` of each, not initialised. Throws
  /// Error(kInvalidArgument), the same text on all members, if some have no memory, are on another
  /// host or cannot open the others'; Error(kAborted) if the job is aborted.
  PeerBuffers(Communicator& control, const std::shared_ptr<const Device>& device,
              std::size_t bytes);

  /// Address of the member's buffer, for this member.
  [[nodiscard]] CudaPointer at(int member) const { return at_[static_cast<std::size_t>(member)]; }

 private:
  DeviceMemory own_;
  std::vector<std::unique_ptr<PeerMemory>> others_;
  std::vector<CudaPointer> at_;
};

}  // namespace hvdtune
