#include "device/ipc.h"

#include <utility>

#include "base/error.h"

namespace hvdtune {
namespace {

/// If memory cannot be shared, the machine does not support it: the data can be sent in other ways.
void check_shared(const Device& device, CudaResult result, const char* what) {
  if (result == CudaResult::kSuccess) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(what) + " for GPU " + std::to_string(device.index()) + " (" +
                  device.name() + ") gives " + device.driver().name(result));
}

}  // namespace

PeerMemory::PeerMemory(std::shared_ptr<const Device> device, const CudaMemoryHandle& handle)
    : device_(std::move(device)) {
  const Device::Current current(*device_);
  check_shared(*device_,
               device_->driver().cuIpcOpenMemHandle(&pointer_, handle, kCudaIpcLazyPeerAccess),
               "cuIpcOpenMemHandle");
}

PeerMemory::~PeerMemory() {
  try {
    const Device::Current current(*device_);
    device_->driver().cuIpcCloseMemHandle(pointer_);
  } catch (const Error&) {  // the driver has ended
  }
}

CudaMemoryHandle export_memory(const Device& device, const DeviceMemory& memory) {
  const Device::Current current(device);
  CudaMemoryHandle handle{};
  check_shared(device, device.driver().cuIpcGetMemHandle(&handle, memory.pointer()),
               "cuIpcGetMemHandle");
  return handle;
}

PeerEvent::PeerEvent(std::shared_ptr<const Device> device) : device_(std::move(device)) {
  const Device::Current current(*device_);
  constexpr unsigned kFlags =
      kCudaEventInterprocess | kCudaEventDisableTiming | kCudaEventBlockingSync;
  device_->driver().check(device_->driver().cuEventCreate(&event_, kFlags), "cuEventCreate");
}

PeerEvent::PeerEvent(std::shared_ptr<const Device> device, const CudaEventHandle& handle)
    : device_(std::move(device)) {
  const Device::Current current(*device_);
  check_shared(*device_, device_->driver().cuIpcOpenEventHandle(&event_, handle),
               "cuIpcOpenEventHandle");
}

PeerEvent::~PeerEvent() {
  try {
    const Device::Current current(*device_);
    device_->driver().cuEventDestroy(event_);
  } catch (const Error&) {  // the driver has ended, and its events with it
  }
}

CudaEventHandle PeerEvent::handle() const {
  const Device::Current current(*device_);
  CudaEventHandle handle{};
  check_shared(*device_, device_->driver().cuIpcGetEventHandle(&handle, event_),
               "cuIpcGetEventHandle");
  return handle;
}

void PeerEvent::record(CudaStream stream) {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuEventRecord(event_, stream), "cuEventRecord");
}

void PeerEvent::wait(CudaStream stream) const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuStreamWaitEvent(stream, event_, 0),
                          "cuStreamWaitEvent");
}

void PeerEvent::synchronize() const {
  const Device::Current current(*device_);
  device_->driver().check(device_->driver().cuEventSynchronize(event_), "work on the GPU");
}

}  // namespace hvdtune
