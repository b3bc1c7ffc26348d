#include "device/device.h"

#include <utility>

#include "base/error.h"

namespace hvdtune {

std::shared_ptr<const Device> Device::open(std::shared_ptr<const CudaDriver> driver, int index) {
  if (index < 0 || index >= driver->devices()) {
    throw Error(ErrorKind::kInvalidArgument,
                "there is no GPU " + std::to_string(index) + ": this process may use " +
                    std::to_string(driver->devices()) +
                    (driver->devices() == 1 ? " GPU" : " GPUs") + ", counted from 0");
  }
  return std::shared_ptr<const Device>(new Device(std::move(driver), index));
}

Device::Device(std::shared_ptr<const CudaDriver> driver, int index)
    : driver_(std::move(driver)), index_(index) {
  int device = 0;  // the driver's number of the GPU; other functions take it instead of the index
  driver_->check(driver_->cuDeviceGet(&device, index), "cuDeviceGet");
  char name[256] = {};
  driver_->check(driver_->cuDeviceGetName(name, sizeof name - 1, device), "cuDeviceGetName");
  name_ = name;
  const auto attribute = [&](CudaAttribute wanted) {
    int value = 0;
    driver_->check(driver_->cuDeviceGetAttribute(&value, wanted, device), "cuDeviceGetAttribute");
    return value;
  };
  capability_ =
      10 * attribute(CudaAttribute::kCapabilityMajor) + attribute(CudaAttribute::kCapabilityMinor);
  multiprocessors_ = attribute(CudaAttribute::kMultiprocessors);
  driver_->check(driver_->cuDeviceGetUuid(&uuid_, device), "cuDeviceGetUuid");
  driver_->check(driver_->cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
}

Device::~Device() {
  // At the end of a process the driver may have ended already: then this does nothing.
  int device = 0;
  if (driver_->cuDeviceGet(&device, index_) == CudaResult::kSuccess) {
    driver_->cuDevicePrimaryCtxRelease(device);
  }
}

Device::Current::Current(const Device& device) : driver_(*device.driver_) {
  driver_.check(driver_.cuCtxPushCurrent(device.context_), "cuCtxPushCurrent");
}

Device::Current::~Current() {
  CudaContext before = nullptr;
  driver_.cuCtxPopCurrent(&before);
}

bool Device::capturing(CudaStream stream) const {
  const Current current(*this);
  CudaCapture capture = CudaCapture::kNone;
  const CudaResult result = driver_->cuStreamIsCapturing(stream, &capture);
  // This is stream 0, and streams that wait for it are being captured: it cannot be used either.
  if (result == CudaResult::kStreamCaptureImplicit) return true;
  driver_->check(result, "cuStreamIsCapturing");
  return capture != CudaCapture::kNone;
}

void Device::copy(CudaPointer to, CudaPointer from, std::size_t bytes, CudaStream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync");
}

void Device::clear(CudaPointer to, std::size_t bytes, CudaStream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->cuMemsetD8Async(to, 0, bytes, stream), "cuMemsetD8Async");
}

namespace {

/// Throws like check(), with size and GPU if there is not enough memory.
void check_memory(const Device& device, CudaResult result, const char* what, std::size_t bytes) {
  if (result == CudaResult::kOutOfMemory) {
    throw Error(ErrorKind::kAborted, std::string(what) + ": no " + std::to_string(bytes) +
                                         " bytes left for GPU " + std::to_string(device.index()) +
                                         " (" + device.name() + ")");
  }
  device.driver().check(result, what);
}

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<const Device> device, std::size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {
  if (bytes == 0) return;
  const Device::Current current(*device_);
  check_memory(*device_, device_->driver().cuMemAlloc(&pointer_, bytes), "cuMemAlloc", bytes);
}

DeviceMemory::~DeviceMemory() {
  if (pointer_ == 0) return;
  try {
    const Device::Current current(*device_);
    device_->driver().cuMemFree(pointer_);
  } catch (const Error&) {  // the driver has ended, and its memory with it
  }
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::PinnedMemory(std::shared_ptr<const Device> device, std::size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {
  if (bytes == 0) return;
  const Device::Current current(*device_);
  check_memory(*device_, device_->driver().cuMemHostAlloc(&data_, bytes, kCudaHostPortable),
               "cuMemHostAlloc", bytes);
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  try {
    const Device::Current current(*device_);
    device_->driver().cuMemFreeHost(data_);
  } catch (const Error&) {  // the driver has ended, and its memory with it
  }
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace hvdtune
