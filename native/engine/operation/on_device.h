#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/libraries/profiler.h"
#include "device/stream.h"

namespace hvdtune {

/// A result on a GPU whose size is known only after all ranks have announced theirs. Destroy it
/// only if no enqueued work still uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error(kAborted) if there is not enough memory.
  DeviceBuffer(const std::shared_ptr<const Device>& device, std::size_t bytes,
               std::vector<std::int64_t> shape)
      : memory_(bytes > 0 ? DeviceMemory(device, bytes) : DeviceMemory()),
        device_(device->index()),
        shape_(std::move(shape)) {}

  /// 0 if there are no bytes.
  [[nodiscard]] CudaPointer pointer() const { return memory_.pointer(); }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }

 private:
  DeviceMemory memory_;
  int device_ = 0;
  std::vector<std::int64_t> shape_;
};

/// An event with several owners.
using SharedEvent = std::shared_ptr<DeviceEvent>;

/// Data of an operation whose tensors are on a GPU, in addition to their addresses.
struct OnDevice {
  std::shared_ptr<const Device> device;
  /// The tensors can be used when all these events are reached.
  std::vector<SharedEvent> ready;
  /// For a profiler: lasts until a GPU or the host starts the operation.
  ProfilerRange queued;
  // Results, like Operation::outputs.
  std::vector<DeviceBuffer> outputs;
  bool launched = false;  ///< a GPU works on it, or has
  /// If operations count as done before the GPU has finished: the event that it reaches then.
  SharedEvent end;
};

}  // namespace hvdtune
