#include "device/stream.h"

#include <utility>

#include "base/error.h"

namespace hvdtune {

DeviceEvent::DeviceEvent(std::shared_ptr<const Device> device, bool timed)
    : device_(std::move(device)) {
  const Device::Current current(*device_);
  // Host threads sleep while they wait, so that other ranks' threads can run.
  const unsigned flags = kCudaEventBlockingSync | (timed ? 0U : kCudaEventDisableTiming);
  device_->driver().check(device_->driver().cuEventCreate(&event_, flags), "cuEventCreate");
}

DeviceEvent::~DeviceEvent() {
  try {
    const Device::Current current(*device_);
    device_->driver().cuEventDestroy(event_);
  } catch (const Error&) {  // the driver has ended, and its events with it
  }
}

void DeviceEvent::record(CudaStream stream) {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuEventRecord(event_, stream), "cuEventRecord");
}

bool DeviceEvent::done() const {
  const Device::Current current(*device_);
  const CudaResult result = device_->driver().cuEventQuery(event_);
  if (result == CudaResult::kNotReady) return false;
  device_->driver().check(result, "work on the GPU");
  return true;
}

void DeviceEvent::synchronize() const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuEventSynchronize(event_), "work on the GPU");
}

double DeviceEvent::milliseconds_since(const DeviceEvent& earlier) const {
  const Device::Current current(*device_);
  float milliseconds = 0;
  device_->driver().check(
      device_->driver().cuEventElapsedTime(&milliseconds, earlier.event_, event_),
      "cuEventElapsedTime");
  return static_cast<double>(milliseconds);
}

DeviceStream::DeviceStream(std::shared_ptr<const Device> device) : device_(std::move(device)) {
  const Device::Current current(*device_);
  const CudaDriver& driver = device_->driver();
  int least = 0;
  int greatest = 0;
  driver.check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
  driver.check(driver.cuStreamCreateWithPriority(&stream_, kCudaStreamNonBlocking, greatest),
               "cuStreamCreateWithPriority");
}

DeviceStream::~DeviceStream() {
  try {
    const Device::Current current(*device_);
    device_->driver().cuStreamDestroy(stream_);
  } catch (const Error&) {  // the driver has ended, and its streams with it
  }
}

void DeviceStream::wait(const DeviceEvent& event) { wait_on(stream_, event); }

void DeviceStream::synchronize() const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuStreamSynchronize(stream_), "work on the GPU");
}

void wait_on(CudaStream stream, const DeviceEvent& event) {
  const Device& device = event.device();
  const Device::Current current(device);
  device.driver().check(device.driver().cuStreamWaitEvent(stream, event.handle(), 0),
                        "cuStreamWaitEvent");
}

struct EventPool::Shelf {
  std::shared_ptr<const Device> device;
  bool timed;
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceEvent>> events;
};

EventPool::EventPool(std::shared_ptr<const Device> device, bool timed)
    : shelf_(std::make_shared<Shelf>()) {
  shelf_->device = std::move(device);
  shelf_->timed = timed;
}

EventPool::Event EventPool::take() {
  {
    const std::lock_guard lock(shelf_->mutex);
    if (!shelf_->events.empty()) {
      Event event(shelf_->events.back().release(), Back{shelf_});
      shelf_->events.pop_back();
      return event;
    }
  }
  return {new DeviceEvent(shelf_->device, shelf_->timed), Back{shelf_}};
}

void EventPool::Back::operator()(DeviceEvent* event) const {
  const std::lock_guard lock(shelf->mutex);
  shelf->events.emplace_back(event);
}

}  // namespace hvdtune
