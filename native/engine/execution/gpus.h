#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "engine/execution/device_options.h"
#include "engine/operation/on_device.h"
#include "wire/request.h"

namespace hvdtune {

/// The GPU that this process's tensors are on; opened for the first tensor. Any thread.
class Gpus {
 public:
  explicit Gpus(DeviceOptions options) : options_(std::move(options)) {}

  [[nodiscard]] const DeviceOptions& options() const { return options_; }

  /// For an operation on a GPU, at its submission: its tensors can be used when all work given to
  /// `streams` up to now is done; without a stream, at once. Does not wait. Throws
  /// Error(kInvalidArgument) like use(), and if a stream is being captured into a CUDA graph.
  std::shared_ptr<OnDevice> accept(const wire::Request& request,
                                   std::span<const CudaStream> streams);

  /// Opens GPU `index`, which is the one in use from now on. Throws Error(kInvalidArgument) if
  /// there is no CUDA driver or no such GPU, or if another GPU is in use; Error(kAborted) if the
  /// GPU cannot be used.
  std::shared_ptr<const Device> use(int index);
  /// use(), but does nothing if a GPU is in use already, or if this one cannot be used.
  void try_use(int index);
  /// Null before the first use().
  std::shared_ptr<const Device> in_use();
  /// The profiler to be told about work on the GPU; null if there is none, and before the first
  /// use().
  [[nodiscard]] const Profiler* profiler() const { return profiler_.load(); }
  /// The GPU whose memory contains an address; for no address (0), the one in use, or the first.
  /// Throws Error(kInvalidArgument) if no GPU's does.
  int device_of(CudaPointer pointer);

  /// Warns, once, that this rank's tensors pass through host memory.
  void warn_staged(int rank, const std::string& why);

  /// A free event of the GPU in use; it returns to a pool when it is released.
  SharedEvent event(bool timed);

 private:
  const std::shared_ptr<const CudaDriver>& driver();
  std::shared_ptr<const Device> use_locked(int index);
  void attach_profiler();

  const DeviceOptions options_;
  std::mutex mutex_;
  std::shared_ptr<const CudaDriver> driver_;
  std::shared_ptr<const Device> in_use_;
  std::optional<EventPool> events_;
  std::optional<EventPool> timed_events_;
  std::atomic<const Profiler*> profiler_ = nullptr;
  bool warned_ = false;
};

}  // namespace hvdtune
