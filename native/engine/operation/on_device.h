#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/libraries/profiler.h"
#include "device/stream.h"

namespace hvdtune {

/// Results on a GPU whose size is known only when all ranks have spoken. Whoever lets it go knows
/// that nothing enqueued still uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error(kAborted) when there is not enough memory.
  DeviceBuffer(const std::shared_ptr<const Device>& device, std::size_t bytes,
               std::vector<std::int64_t> shape)
      : memory_(bytes > 0 ? DeviceMemory(device, bytes) : DeviceMemory()),
        device_(device->index()),
        shape_(std::move(shape)) {}

  /// 0 where there are no bytes.
  [[nodiscard]] CudaPointer pointer() const { return memory_.pointer(); }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }

 private:
  DeviceMemory memory_;
  int device_ = 0;
  std::vector<std::int64_t> shape_;
};

/// A point of a stream that several look at.
using SharedEvent = std::shared_ptr<DeviceEvent>;

/// What belongs to an operation whose tensors are on a GPU, besides their addresses.
struct OnDevice {
  std::shared_ptr<const Device> device;
  /// The tensors can be used when all of them are reached.
  std::vector<SharedEvent> ready;
  /// For a profiler: until a GPU or the host begins with it.
  ProfilerRange queued;
  // Results, as those of Operation.
  std::vector<DeviceBuffer> outputs;
  bool launched = false;  ///< a GPU works on it, or has
  /// Where operations are done before the GPU is: when it will be.
  SharedEvent end;
};

}  // namespace hvdtune
