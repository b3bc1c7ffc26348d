#pragma once

#include <memory>
#include <string>

#include "device/libraries/cuda_types.h"

namespace hvdtune {

/// The functions of libcuda.so.1, found at run time. Members have the names of the documentation; a
/// comment gives the suffix of the library's symbol if that has another name.
///
/// The library is never unloaded, because it has its own threads. All functions may be called from
/// any thread; those on memory, streams, events and kernels need a current context
/// (Device::Current).
class CudaDriver {
 public:
  /// Loads the library at `path` (a file, or a name that the loader finds), looks for all functions
  /// and initialises it. Throws Error(kInvalidArgument), one sentence: no such file, a function
  /// that is missing (an old driver), a driver older than CUDA 11.4, no GPU.
  static std::shared_ptr<const CudaDriver> open(const std::string& path);

  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  /// Does nothing if `result` is kSuccess. Otherwise throws Error(kAborted): "`what` failed: " with
  /// CUDA's name and text of the result.
  void check(CudaResult result, const char* what) const;

  /// CUDA's name of a result, e.g. "CUDA_ERROR_OUT_OF_MEMORY".
  [[nodiscard]] std::string name(CudaResult result) const;

  /// The version of CUDA that this driver supports: 1000 * major + 10 * minor, e.g. 12040.
  [[nodiscard]] int version() const { return version_; }
  /// Number of GPUs that this process may use (respecting CUDA_VISIBLE_DEVICES). At least one.
  [[nodiscard]] int devices() const { return devices_; }
  /// The loaded file, as passed to open().
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Index of the GPU whose memory contains `pointer`; -1 for host memory that CUDA knows. Throws
  /// Error(kInvalidArgument) if CUDA does not know the address.
  [[nodiscard]] int device_of(CudaPointer pointer) const;

  CudaResult (*cuInit)(unsigned flags);
  CudaResult (*cuDriverGetVersion)(int* version);
  CudaResult (*cuGetErrorName)(CudaResult result, const char** name);
  CudaResult (*cuGetErrorString)(CudaResult result, const char** text);

  CudaResult (*cuDeviceGetCount)(int* count);
  CudaResult (*cuDeviceGet)(int* device, int index);
  CudaResult (*cuDeviceGetName)(char* name, int length, int device);
  CudaResult (*cuDeviceGetAttribute)(int* value, CudaAttribute attribute, int device);
  CudaResult (*cuDeviceGetUuid)(CudaUuid* uuid, int device);  // _v2: a MIG slice has its own
  CudaResult (*cuDevicePrimaryCtxRetain)(CudaContext* context, int device);
  CudaResult (*cuDevicePrimaryCtxRelease)(int device);  // _v2
  CudaResult (*cuCtxPushCurrent)(CudaContext context);  // _v2
  CudaResult (*cuCtxPopCurrent)(CudaContext* context);  // _v2
  CudaResult (*cuCtxGetStreamPriorityRange)(int* least, int* greatest);

  CudaResult (*cuMemAlloc)(CudaPointer* pointer, std::size_t bytes);  // _v2
  CudaResult (*cuMemFree)(CudaPointer pointer);                       // _v2
  CudaResult (*cuMemHostAlloc)(void** memory, std::size_t bytes, unsigned flags);
  CudaResult (*cuMemFreeHost)(void* memory);
  CudaResult (*cuPointerGetAttribute)(void* value, CudaPointerAttribute attribute,
                                      CudaPointer pointer);
  /// Between any two addresses, of a GPU's memory or of page-locked host memory.
  CudaResult (*cuMemcpyAsync)(CudaPointer to, CudaPointer from, std::size_t bytes,
                              CudaStream stream);
  CudaResult (*cuMemsetD8Async)(CudaPointer to, unsigned char value, std::size_t bytes,
                                CudaStream stream);

  CudaResult (*cuStreamCreateWithPriority)(CudaStream* stream, unsigned flags, int priority);
  CudaResult (*cuStreamDestroy)(CudaStream stream);  // _v2
  CudaResult (*cuStreamSynchronize)(CudaStream stream);
  CudaResult (*cuStreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags);
  CudaResult (*cuStreamIsCapturing)(CudaStream stream, CudaCapture* capture);

  CudaResult (*cuEventCreate)(CudaEvent* event, unsigned flags);
  CudaResult (*cuEventDestroy)(CudaEvent event);  // _v2
  CudaResult (*cuEventRecord)(CudaEvent event, CudaStream stream);
  CudaResult (*cuEventQuery)(CudaEvent event);
  CudaResult (*cuEventSynchronize)(CudaEvent event);
  CudaResult (*cuEventElapsedTime)(float* milliseconds, CudaEvent from, CudaEvent to);

  CudaResult (*cuModuleLoadData)(CudaModule* module, const void* image);
  CudaResult (*cuModuleUnload)(CudaModule module);
  CudaResult (*cuModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name);
  CudaResult (*cuLaunchKernel)(CudaFunction function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared_bytes, CudaStream stream,
                               void** parameters, void** extra);

  CudaResult (*cuIpcGetMemHandle)(CudaMemoryHandle* handle, CudaPointer pointer);
  CudaResult (*cuIpcOpenMemHandle)(CudaPointer* pointer, CudaMemoryHandle handle,
                                   unsigned flags);  // _v2
  CudaResult (*cuIpcCloseMemHandle)(CudaPointer pointer);
  CudaResult (*cuIpcGetEventHandle)(CudaEventHandle* handle, CudaEvent event);
  CudaResult (*cuIpcOpenEventHandle)(CudaEvent* event, CudaEventHandle handle);

 private:
  explicit CudaDriver(const std::string& path);

  std::string path_;
  int version_ = 0;
  int devices_ = 0;
};

}  // namespace hvdtune
