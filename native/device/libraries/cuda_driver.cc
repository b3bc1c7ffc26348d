#include "device/libraries/cuda_driver.h"

#include "base/error.h"
#include "device/libraries/shared_library.h"

namespace hvdtune {
namespace {

constexpr int kOldestDriver = 11040;
constexpr const char* kOldestDriverText = "the driver of CUDA 11.4 (470)";

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::shared_ptr<const CudaDriver> CudaDriver::open(const std::string& path) {
  return std::shared_ptr<const CudaDriver>(new CudaDriver(path));
}

CudaDriver::CudaDriver(const std::string& path) : path_(path) {
  const SharedLibrary library("NVIDIA's driver", path);
  const auto find = [&](auto*& function, const char* symbol) {
    library.find(function, symbol, kOldestDriverText);
  };
  find(cuInit, "cuInit");
  find(cuDriverGetVersion, "cuDriverGetVersion");
  find(cuGetErrorName, "cuGetErrorName");
  find(cuGetErrorString, "cuGetErrorString");
  find(cuDeviceGetCount, "cuDeviceGetCount");
  find(cuDeviceGet, "cuDeviceGet");
  find(cuDeviceGetName, "cuDeviceGetName");
  find(cuDeviceGetAttribute, "cuDeviceGetAttribute");
  find(cuDeviceGetUuid, "cuDeviceGetUuid_v2");
  find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  find(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  find(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  find(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange");
  find(cuMemAlloc, "cuMemAlloc_v2");
  find(cuMemFree, "cuMemFree_v2");
  find(cuMemHostAlloc, "cuMemHostAlloc");
  find(cuMemFreeHost, "cuMemFreeHost");
  find(cuPointerGetAttribute, "cuPointerGetAttribute");
  find(cuMemcpyAsync, "cuMemcpyAsync");
  find(cuMemsetD8Async, "cuMemsetD8Async");
  find(cuStreamCreateWithPriority, "cuStreamCreateWithPriority");
  find(cuStreamDestroy, "cuStreamDestroy_v2");
  find(cuStreamSynchronize, "cuStreamSynchronize");
  find(cuStreamWaitEvent, "cuStreamWaitEvent");
  find(cuStreamIsCapturing, "cuStreamIsCapturing");
  find(cuEventCreate, "cuEventCreate");
  find(cuEventDestroy, "cuEventDestroy_v2");
  find(cuEventRecord, "cuEventRecord");
  find(cuEventQuery, "cuEventQuery");
  find(cuEventSynchronize, "cuEventSynchronize");
  find(cuEventElapsedTime, "cuEventElapsedTime");
  find(cuModuleLoadData, "cuModuleLoadData");
  find(cuModuleUnload, "cuModuleUnload");
  find(cuModuleGetFunction, "cuModuleGetFunction");
  find(cuLaunchKernel, "cuLaunchKernel");
  find(cuIpcGetMemHandle, "cuIpcGetMemHandle");
  find(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2");
  find(cuIpcCloseMemHandle, "cuIpcCloseMemHandle");
  find(cuIpcGetEventHandle, "cuIpcGetEventHandle");
  find(cuIpcOpenEventHandle, "cuIpcOpenEventHandle");

  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument, "NVIDIA's driver at " + path + " " + why);
  };
  // The version can be read before anything else works, and explains most failures.
  if (cuDriverGetVersion(&version_) == CudaResult::kSuccess && version_ < kOldestDriver) {
    refuse("supports CUDA " + cuda_version(version_) + ": hvdtune needs " + kOldestDriverText +
           " or later");
  }
  const CudaResult started = cuInit(0);
  if (started == CudaResult::kNoDevice) refuse("sees no GPU");
  if (started != CudaResult::kSuccess) refuse("cannot be used: cuInit gives " + name(started));
  const CudaResult counted = cuDeviceGetCount(&devices_);
  if (counted != CudaResult::kSuccess) refuse("cannot count the GPUs: " + name(counted));
  if (devices_ < 1) refuse("sees no GPU");
}

std::string CudaDriver::name(CudaResult result) const {
  const char* text = nullptr;
  if (cuGetErrorName(result, &text) != CudaResult::kSuccess || text == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  return text;
}

void CudaDriver::check(CudaResult result, const char* what) const {
  if (result == CudaResult::kSuccess) return;
  std::string message = std::string(what) + " failed: " + name(result);
  const char* text = nullptr;
  if (cuGetErrorString(result, &text) == CudaResult::kSuccess && text != nullptr) {
    message += " (" + std::string(text) + ")";
  }
  throw Error(ErrorKind::kAborted, message);
}

int CudaDriver::device_of(CudaPointer pointer) const {
  unsigned type = 0;
  const CudaResult known = cuPointerGetAttribute(&type, CudaPointerAttribute::kMemoryType, pointer);
  if (known == CudaResult::kInvalidValue) {
    throw Error(ErrorKind::kInvalidArgument, "address " + std::to_string(pointer) +
                                                 " is neither a GPU's memory nor page-locked");
  }
  check(known, "cuPointerGetAttribute");
  if (type == kCudaMemoryHost) return -1;
  int device = -1;
  check(cuPointerGetAttribute(&device, CudaPointerAttribute::kDeviceOrdinal, pointer),
        "cuPointerGetAttribute");
  return device;
}

}  // namespace hvdtune
