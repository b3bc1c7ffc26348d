#pragma once

#include <memory>
#include <string>

#include "device/libraries/cuda_driver.h"

namespace hvdtune {

/// One GPU, through its primary context. PyTorch, CuPy and every other user of CUDA's runtime in
/// this process use the same context, so hvdtune can use their memory and streams.
///
/// Objects made with a Device keep it alive. The last owner releases the context. Any thread.
class Device {
 public:
  /// Throws Error(kInvalidArgument) if there is no GPU `index`, Error(kAborted) if it cannot be
  /// used.
  static std::shared_ptr<const Device> open(std::shared_ptr<const CudaDriver> driver, int index);

  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] const std::string& name() const { return name_; }       ///< e.g. "NVIDIA H100"
  [[nodiscard]] int compute_capability() const { return capability_; }  ///< e.g. 90
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Identifies the GPU (or its MIG slice), the same in every process of the host.
  [[nodiscard]] const CudaUuid& uuid() const { return uuid_; }

  /// Makes this GPU's context current in the calling thread, and restores the previous one at the
  /// end. Nests. A caller of a driver function that needs a context must hold one; the classes
  /// below do so themselves.
  class Current {
   public:
    explicit Current(const Device& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& driver_;
  };

  /// Whether work given to `stream` is at present captured into a CUDA graph instead of being run;
  /// for stream 0, also whether it cannot be used because another stream is captured. Throws
  /// Error(kAborted) if `stream` is not a stream.
  [[nodiscard]] bool capturing(CudaStream stream) const;

  /// Enqueues a copy; both addresses are memory of a GPU or page-locked memory of the host.
  void copy(CudaPointer to, CudaPointer from, std::size_t bytes, CudaStream stream) const;
  /// Enqueues writing `bytes` zeros.
  void clear(CudaPointer to, std::size_t bytes, CudaStream stream) const;

 private:
  Device(std::shared_ptr<const CudaDriver> driver, int index);

  std::shared_ptr<const CudaDriver> driver_;
  int index_;
  CudaContext context_ = nullptr;
  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  CudaUuid uuid_{};
};

/// Host memory as an address for Device::copy().
inline CudaPointer host_address(const void* memory) {
  return reinterpret_cast<CudaPointer>(memory);
}

/// Device memory from cuMemAlloc, aligned to 256 bytes. Not initialised. Free it only if no
/// enqueued work still uses it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error(kAborted), which names size and GPU, if there is not enough.
  DeviceMemory(std::shared_ptr<const Device> device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  [[nodiscard]] CudaPointer pointer() const { return pointer_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Device> device_;
  CudaPointer pointer_ = 0;
  std::size_t bytes_ = 0;
};

/// Page-locked host memory (cuMemHostAlloc). Every GPU copies to and from it while the host
/// continues.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws Error(kAborted), which names the size, if there is not enough.
  PinnedMemory(std::shared_ptr<const Device> device, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] CudaPointer pointer() const { return host_address(data_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Device> device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvdtune
