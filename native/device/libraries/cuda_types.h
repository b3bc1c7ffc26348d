#pragma once

#include <cstddef>
#include <cstdint>

// The part of NVIDIA's driver interface that hvdtune uses, declared here so that building needs
// nothing of CUDA. A comment gives each type's name in the interface's documentation.

namespace hvdtune {

/// An address in a GPU's memory (CUdeviceptr).
using CudaPointer = std::uint64_t;

using CudaContext = struct CudaContextOpaque*;    ///< CUcontext
using CudaStream = struct CudaStreamOpaque*;      ///< CUstream, cudaStream_t; null: legacy default
using CudaEvent = struct CudaEventOpaque*;        ///< CUevent, cudaEvent_t
using CudaModule = struct CudaModuleOpaque*;      ///< CUmodule
using CudaFunction = struct CudaFunctionOpaque*;  ///< CUfunction

/// CUresult. All values are CUDA's; those that hvdtune treats differently have a name.
enum class CudaResult : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kStreamCaptureImplicit = 906,
  kUnknown = 999,
};

/// CUdevice_attribute
enum class CudaAttribute : int {
  kMultiprocessors = 16,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};

/// CUpointer_attribute
enum class CudaPointerAttribute : int {
  kMemoryType = 2,     ///< unsigned: CUmemorytype
  kDeviceOrdinal = 9,  ///< int
};

/// CUmemorytype
inline constexpr unsigned kCudaMemoryHost = 1;
inline constexpr unsigned kCudaMemoryDevice = 2;

/// CUstreamCaptureStatus
enum class CudaCapture : int { kNone = 0, kActive = 1, kInvalidated = 2 };

inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventBlockingSync = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaEventInterprocess = 4;
inline constexpr unsigned kCudaHostPortable = 1;
inline constexpr unsigned kCudaIpcLazyPeerAccess = 1;

struct CudaUuid {
  char bytes[16];
};

/// CUipcMemHandle, CUipcEventHandle: name memory and events to other processes of the host.
struct CudaMemoryHandle {
  char bytes[64];
};
struct CudaEventHandle {
  char bytes[64];
};

}  // namespace hvdtune
