#pragma once

#include <memory>

#include "device/device.h"

namespace hvdtune {

/// Device memory of another process of this host, on any GPU to which this one has peer access. All
/// work with it must end before the other process frees it.
class PeerMemory {
 public:
  /// `handle`: of an allocation that the other process has exported whole. Throws
  /// Error(kInvalidArgument) if the GPUs have no peer access, or the other process is gone.
  PeerMemory(std::shared_ptr<const Device> device, const CudaMemoryHandle& handle);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  [[nodiscard]] CudaPointer pointer() const { return pointer_; }

 private:
  std::shared_ptr<const Device> device_;
  CudaPointer pointer_ = 0;
};

/// A handle of `memory` for other processes. Throws Error(kInvalidArgument) if it cannot be
/// exported.
CudaMemoryHandle export_memory(const Device& device, const DeviceMemory& memory);

/// A point in the work of a stream that streams of other processes (not their host threads) can
/// wait for. A wait refers to the last record() called before it.
class PeerEvent {
 public:
  /// An event of this process, which records it. Throws Error(kAborted).
  explicit PeerEvent(std::shared_ptr<const Device> device);
  /// An event of another process. Throws Error(kInvalidArgument).
  PeerEvent(std::shared_ptr<const Device> device, const CudaEventHandle& handle);
  ~PeerEvent();
  PeerEvent(const PeerEvent&) = delete;
  PeerEvent& operator=(const PeerEvent&) = delete;

  /// A handle of the event for other processes. Throws Error(kInvalidArgument) if it cannot be
  /// exported.
  [[nodiscard]] CudaEventHandle handle() const;
  /// Throw Error(kAborted).
  void record(CudaStream stream);
  void wait(CudaStream stream) const;
  /// The host thread sleeps until the last record is reached.
  void synchronize() const;

 private:
  std::shared_ptr<const Device> device_;
  CudaEvent event_ = nullptr;
};

}  // namespace hvdtune
