#pragma once

#include <memory>

#include "device/device.h"

namespace hvdtune {

/// Device memory of another process of this host, on any GPU that this one reaches. What is done
/// with it ends before the other process frees it.
class PeerMemory {
 public:
  /// Of an allocation that the other process has exported whole. Throws Error(kInvalidArgument)
  /// where the GPUs do not reach each other, or the other process is gone.
  PeerMemory(std::shared_ptr<const Device> device, const CudaMemoryHandle& handle);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  [[nodiscard]] CudaPointer pointer() const { return pointer_; }

 private:
  std::shared_ptr<const Device> device_;
  CudaPointer pointer_ = 0;
};

/// What names `memory` to other processes. Throws Error(kInvalidArgument) where that cannot be.
CudaMemoryHandle export_memory(const Device& device, const DeviceMemory& memory);

/// A point in the work of a stream that other processes can wait for: their GPU's streams, not
/// their host. A wait means the last record that was called before it.
class PeerEvent {
 public:
  /// Of this process; it records it. Throws Error(kAborted).
  explicit PeerEvent(std::shared_ptr<const Device> device);
  /// Of another process. Throws Error(kInvalidArgument).
  PeerEvent(std::shared_ptr<const Device> device, const CudaEventHandle& handle);
  ~PeerEvent();
  PeerEvent(const PeerEvent&) = delete;
  PeerEvent& operator=(const PeerEvent&) = delete;

  /// What names it to other processes. Throws Error(kInvalidArgument) where that cannot be.
  [[nodiscard]] CudaEventHandle handle() const;
  /// Throw Error(kAborted).
  void record(CudaStream stream);
  void wait(CudaStream stream) const;
  /// The host waits for the last record, asleep.
  void synchronize() const;

 private:
  std::shared_ptr<const Device> device_;
  CudaEvent event_ = nullptr;
};

}  // namespace hvdtune
