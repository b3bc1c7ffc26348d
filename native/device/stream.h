#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace hvdtune {

/// A point in the work of a stream: it is reached when everything enqueued before it is done. One
/// thread at a time, except for done() and synchronize().
class DeviceEvent {
 public:
  /// `timed`: allows milliseconds_since(); costs the GPU a little. Throws Error(kAborted).
  DeviceEvent(std::shared_ptr<const Device> device, bool timed);
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  /// Sets the event to the present end of `stream`, which is any stream of this GPU. Does not wait.
  /// Throws Error(kAborted).
  void record(CudaStream stream);
  /// Whether it is reached; true if it was never recorded. Throws Error(kAborted) if enqueued work
  /// has failed: then nothing on this GPU can be used any more.
  [[nodiscard]] bool done() const;
  /// Sleeps until it is reached. Throws like done().
  void synchronize() const;
  /// Both events must be timed, recorded and done. Throws Error(kAborted).
  [[nodiscard]] double milliseconds_since(const DeviceEvent& earlier) const;

  [[nodiscard]] CudaEvent handle() const { return event_; }
  [[nodiscard]] const Device& device() const { return *device_; }

 private:
  std::shared_ptr<const Device> device_;
  CudaEvent event_ = nullptr;
};

/// A stream of hvdtune: it does not synchronise with the default stream, and its kernels have
/// priority over those of ordinary streams.
class DeviceStream {
 public:
  /// Throws Error(kAborted).
  explicit DeviceStream(std::shared_ptr<const Device> device);
  /// Does not wait for enqueued work; the GPU frees the stream after it.
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  [[nodiscard]] CudaStream handle() const { return stream_; }
  [[nodiscard]] const Device& device() const { return *device_; }

  /// Work enqueued here from now on begins after `event`; the host does not wait. Throws
  /// Error(kAborted).
  void wait(const DeviceEvent& event);
  /// The host thread waits, asleep or not, until all enqueued work is done. Throws Error(kAborted).
  void synchronize() const;

 private:
  std::shared_ptr<const Device> device_;
  CudaStream stream_ = nullptr;
};

/// Like DeviceStream::wait() for any other stream: work enqueued in `stream` from now on begins
/// after `event`. Throws Error(kAborted).
void wait_on(CudaStream stream, const DeviceEvent& event);

/// Reuses events, since making one takes microseconds. Any thread. Events may outlive the pool.
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
  /// An event that returns to the pool when its handle is destroyed. No thread may still be waiting
  /// for it; waits that stream_.wait() has already enqueued are fine.
  using Event = std::unique_ptr<DeviceEvent, Back>;

  /// A free event; makes one if there is none. Throws Error(kAborted).
  Event take();

 private:
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace hvdtune
