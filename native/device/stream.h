#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace hvdtune {

/// A point in the work of a stream: it is reached when everything that was enqueued before it is
/// done. Not for two threads at once, except done() and synchronize().
class DeviceEvent {
 public:
  /// `timed`: milliseconds_since() may be asked; costs the GPU a little. Throws Error(kAborted).
  DeviceEvent(std::shared_ptr<const Device> device, bool timed);
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  /// From now on it is this point of `stream`, of this GPU; anybody's stream. Does not wait. Throws
  /// Error(kAborted).
  void record(CudaStream stream);
  /// Whether it is reached; true where it was never recorded. Throws Error(kAborted) where
  /// something enqueued has failed: then nothing on this GPU can be used any more.
  [[nodiscard]] bool done() const;
  /// Waits until it is reached, asleep. Throws like done().
  void synchronize() const;
  /// Both timed, recorded and done. Throws Error(kAborted).
  [[nodiscard]] double milliseconds_since(const DeviceEvent& earlier) const;

  [[nodiscard]] CudaEvent handle() const { return event_; }
  [[nodiscard]] const Device& device() const { return *device_; }

 private:
  std::shared_ptr<const Device> device_;
  CudaEvent event_ = nullptr;
};

/// A stream of our own: it does not synchronise with the default stream, and its kernels go before
/// those of ordinary streams.
class DeviceStream {
 public:
  /// Throws Error(kAborted).
  explicit DeviceStream(std::shared_ptr<const Device> device);
  /// Does not wait for what is enqueued; the GPU frees the stream after it.
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  [[nodiscard]] CudaStream handle() const { return stream_; }
  [[nodiscard]] const Device& device() const { return *device_; }

  /// What is enqueued here from now on begins after `event`; the host does not wait. Throws
  /// Error(kAborted).
  void wait(const DeviceEvent& event);
  /// The host waits until everything enqueued is done, asleep or not. Throws Error(kAborted).
  void synchronize() const;

 private:
  std::shared_ptr<const Device> device_;
  CudaStream stream_ = nullptr;
};

/// The same for somebody else's stream: what is enqueued in `stream` from now on begins after
/// `event`. Throws Error(kAborted).
void wait_on(CudaStream stream, const DeviceEvent& event);

/// Events that are used again, as making one takes microseconds. Any thread. Events may outlive the
/// pool.
class EventPool {
 public:
  EventPool(std::shared_ptr<const Device> device, bool timed);

 private:
  struct Shelf;
  struct Back {
    std::shared_ptr<Shelf> shelf;
    void operator()(DeviceEvent* event) const;
  };

 public:
  /// An event that goes back into the pool with its handle. Nobody may wait for it then: what
  /// stream_.wait() enqueued before is in order.
  using Event = std::unique_ptr<DeviceEvent, Back>;

  /// One that nobody has; made where there is none. Throws Error(kAborted).
  Event take();

 private:
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace hvdtune
