#pragma once

#include <memory>
#include <string>

#include "device/libraries/cuda_driver.h"

namespace hvdtune {

/// One GPU, through its primary context: the one that PyTorch, CuPy and every other user of CUDA's
/// runtime in this process has, so that their memory and streams are ours.
///
/// What is made with a Device keeps it. The last one to go releases the context. Any thread.
class Device {
 public:
  /// Throws Error(kInvalidArgument) where there is no GPU `index`, Error(kAborted) where it cannot
  /// be used.
  static std::shared_ptr<const Device> open(std::shared_ptr<const CudaDriver> driver, int index);

  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] const std::string& name() const { return name_; }       ///< e.g. "NVIDIA H100"
  [[nodiscard]] int compute_capability() const { return capability_; }  ///< e.g. 90
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Of the GPU (or its MIG slice), the same in every process of the host.
  [[nodiscard]] const CudaUuid& uuid() const { return uuid_; }

  /// Makes this GPU's context the calling thread's, and the one before it again at the end. Nests.
  /// Whoever calls a function of the driver that wants a context holds one; the classes below do it
  /// themselves.
  class Current {
   public:
    explicit Current(const Device& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& driver_;
  };

  /// Whether work given to `stream` goes into a CUDA graph at present, and does not run; for stream
  /// 0, also where it cannot be used because another is captured. Throws Error(kAborted) for what
  /// is no stream.
  [[nodiscard]] bool capturing(CudaStream stream) const;

  /// Enqueued; both places are a GPU's or page-locked memory of the host.
  void copy(CudaPointer to, CudaPointer from, std::size_t bytes, CudaStream stream) const;
  /// Enqueued: `bytes` zeros.
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

/// Device memory of one's own (cuMemAlloc), aligned to 256 bytes. Not initialised. Whoever frees it
/// knows that nothing enqueued still uses it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error(kAborted), which names size and GPU, where there is not enough.
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

/// Page-locked host memory (cuMemHostAlloc), which copies to and from every GPU run beside the
/// host.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws Error(kAborted), which names the size, where there is not enough.
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
