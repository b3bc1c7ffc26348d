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

/// The GPU that this process's tensors are on: opened when the first tensor comes. Any thread.
class Gpus {
 public:
  explicit Gpus(DeviceOptions options) : options_(std::move(options)) {}

  [[nodiscard]] const DeviceOptions& options() const { return options_; }

  /// For an operation on a GPU, at the moment of its submission: its tensors can be used when what
  /// `streams` have been given up to now is done; without a stream they can already. Nothing waits.
  /// Throws Error(kInvalidArgument): as use(), and for a stream that is being captured into a CUDA
  /// graph.
  std::shared_ptr<OnDevice> accept(const wire::Request& request,
                                   std::span<const CudaStream> streams);

  /// The GPU `index`, which is the one in use from now on. Throws Error(kInvalidArgument): no CUDA
  /// driver, no such GPU, another one is in use. Error(kAborted) where the GPU cannot be used.
  std::shared_ptr<const Device> use(int index);
  /// Whether there is a driver that works and sees a GPU. Loads it. Whoever needs one learns from
  /// use() why there is none.
  bool any();
  /// Null before the first use().
  std::shared_ptr<const Device> in_use();
  /// The profiler that is to be told what is done with the GPU; null where there is none, and
  /// before the first use().
  [[nodiscard]] const Profiler* profiler() const { return profiler_.load(); }
  /// The GPU in whose memory an address is; the one in use, or the first, for no address (0).
  /// Throws Error(kInvalidArgument) where it is in none's.
  int device_of(CudaPointer pointer);

  /// Warns, once, that this rank's tensors travel through host memory.
  void warn_staged(int rank, const std::string& why);

  /// An event that nobody has, of the GPU in use; goes back into a pool when it is let go.
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
