// Whether our declarations of NVIDIA's interfaces are the ones of NVIDIA's headers. Compiled where
// these are; nothing to run.

#include <tuple>
#include <type_traits>

// Before cuda.h, which gives names like cuMemAlloc to the functions' later versions.
#include "device/libraries/cuda_driver.h"
#include "device/libraries/nvtx.h"
#include "device/nccl_library.h"

#include <cuda.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace {

/// A type as it is passed: pointers are alike, and so are numbers of one size.
template <class T>
using Passed = std::conditional_t<
    std::is_pointer_v<T>, void*,
    std::conditional_t<std::is_enum_v<T> || std::is_integral_v<T>,
                       std::integral_constant<std::size_t, sizeof(T)>,
                       std::conditional_t<std::is_class_v<T>, char[sizeof(T)], T>>>;

template <class Function>
struct Shape;

template <class Result, class... Arguments>
struct Shape<Result (*)(Arguments...)> {
  using Type =
      std::tuple<std::type_identity<Passed<Result>>, std::type_identity<Passed<Arguments>>...>;
};

template <class... Arguments>
struct Shape<void (*)(Arguments...)> {
  using Type = std::tuple<std::type_identity<void>, std::type_identity<Passed<Arguments>>...>;
};

template <class Ours, class Theirs>
constexpr bool kSame = std::is_same_v<typename Shape<Ours>::Type, typename Shape<Theirs>::Type>;

constexpr bool equal(auto ours, auto theirs) {
  return static_cast<long>(ours) == static_cast<long>(theirs);
}

using hvdtune::CudaDriver;
using hvdtune::CudaResult;

// What a member's symbol is called, as cuda.h says.
#undef cuDeviceGetUuid
#undef cuDevicePrimaryCtxRelease
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuMemAlloc
#undef cuMemFree
#undef cuStreamDestroy
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuIpcOpenMemHandle

#define DRIVER(name, symbol) \
  static_assert(kSame<decltype(CudaDriver::name), decltype(&::symbol)>, #symbol)

DRIVER(cuInit, cuInit);
DRIVER(cuDriverGetVersion, cuDriverGetVersion);
DRIVER(cuGetErrorName, cuGetErrorName);
DRIVER(cuGetErrorString, cuGetErrorString);
DRIVER(cuDeviceGetCount, cuDeviceGetCount);
DRIVER(cuDeviceGet, cuDeviceGet);
DRIVER(cuDeviceGetName, cuDeviceGetName);
DRIVER(cuDeviceGetAttribute, cuDeviceGetAttribute);
DRIVER(cuDeviceGetUuid, cuDeviceGetUuid_v2);
DRIVER(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
DRIVER(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
DRIVER(cuCtxPushCurrent, cuCtxPushCurrent_v2);
DRIVER(cuCtxPopCurrent, cuCtxPopCurrent_v2);
DRIVER(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange);
DRIVER(cuMemAlloc, cuMemAlloc_v2);
DRIVER(cuMemFree, cuMemFree_v2);
DRIVER(cuMemHostAlloc, cuMemHostAlloc);
DRIVER(cuMemFreeHost, cuMemFreeHost);
DRIVER(cuPointerGetAttribute, cuPointerGetAttribute);
DRIVER(cuMemcpyAsync, cuMemcpyAsync);
DRIVER(cuMemsetD8Async, cuMemsetD8Async);
DRIVER(cuStreamCreateWithPriority, cuStreamCreateWithPriority);
DRIVER(cuStreamDestroy, cuStreamDestroy_v2);
DRIVER(cuStreamSynchronize, cuStreamSynchronize);
DRIVER(cuStreamWaitEvent, cuStreamWaitEvent);
DRIVER(cuStreamIsCapturing, cuStreamIsCapturing);
DRIVER(cuEventCreate, cuEventCreate);
DRIVER(cuEventDestroy, cuEventDestroy_v2);
DRIVER(cuEventRecord, cuEventRecord);
DRIVER(cuEventQuery, cuEventQuery);
DRIVER(cuEventSynchronize, cuEventSynchronize);
DRIVER(cuModuleLoadData, cuModuleLoadData);
DRIVER(cuModuleUnload, cuModuleUnload);
DRIVER(cuModuleGetFunction, cuModuleGetFunction);
DRIVER(cuLaunchKernel, cuLaunchKernel);
DRIVER(cuIpcGetMemHandle, cuIpcGetMemHandle);
DRIVER(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2);
DRIVER(cuIpcCloseMemHandle, cuIpcCloseMemHandle);
DRIVER(cuIpcGetEventHandle, cuIpcGetEventHandle);
DRIVER(cuIpcOpenEventHandle, cuIpcOpenEventHandle);

static_assert(equal(CudaResult::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(equal(CudaResult::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(equal(CudaResult::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(equal(CudaResult::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(equal(CudaResult::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(equal(CudaResult::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(equal(CudaResult::kInvalidImage, CUDA_ERROR_INVALID_IMAGE));
static_assert(equal(CudaResult::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
static_assert(equal(CudaResult::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU));
static_assert(equal(CudaResult::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
static_assert(equal(CudaResult::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(equal(CudaResult::kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(equal(CudaResult::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(equal(CudaResult::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(equal(CudaResult::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(equal(CudaResult::kNotSupported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(equal(CudaResult::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(equal(CudaResult::kUnknown, CUDA_ERROR_UNKNOWN));

static_assert(equal(hvdtune::CudaAttribute::kMultiprocessors,
                    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(equal(hvdtune::CudaAttribute::kCapabilityMajor,
                    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(equal(hvdtune::CudaAttribute::kCapabilityMinor,
                    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(equal(hvdtune::CudaPointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(equal(hvdtune::CudaPointerAttribute::kDeviceOrdinal,
                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(equal(hvdtune::kCudaMemoryHost, CU_MEMORYTYPE_HOST));
static_assert(equal(hvdtune::kCudaMemoryDevice, CU_MEMORYTYPE_DEVICE));
static_assert(equal(hvdtune::CudaCapture::kNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(equal(hvdtune::CudaCapture::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(equal(hvdtune::CudaCapture::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(equal(hvdtune::kCudaStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(equal(hvdtune::kCudaEventBlockingSync, CU_EVENT_BLOCKING_SYNC));
static_assert(equal(hvdtune::kCudaEventDisableTiming, CU_EVENT_DISABLE_TIMING));
static_assert(equal(hvdtune::kCudaEventInterprocess, CU_EVENT_INTERPROCESS));
static_assert(equal(hvdtune::kCudaIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
static_assert(sizeof(hvdtune::CudaMemoryHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(hvdtune::CudaEventHandle) == sizeof(CUipcEventHandle));
static_assert(equal(hvdtune::kCudaHostPortable, CU_MEMHOSTALLOC_PORTABLE));
static_assert(sizeof(hvdtune::CudaUuid) == sizeof(CUuuid));

#if __has_include(<nccl.h>)
using hvdtune::NcclConfig;
using hvdtune::NcclLibrary;

#define NCCL(name) static_assert(kSame<decltype(NcclLibrary::name), decltype(&::name)>, #name)

NCCL(ncclGetVersion);
NCCL(ncclGetErrorString);
NCCL(ncclGetLastError);
NCCL(ncclGetUniqueId);
NCCL(ncclCommInitRankConfig);
NCCL(ncclCommGetAsyncError);
NCCL(ncclCommFinalize);
NCCL(ncclCommDestroy);
NCCL(ncclCommAbort);
NCCL(ncclAllReduce);
NCCL(ncclBroadcast);
NCCL(ncclAllGather);
NCCL(ncclReduceScatter);
NCCL(ncclSend);
NCCL(ncclRecv);
NCCL(ncclGroupStart);
NCCL(ncclGroupEnd);
NCCL(ncclRedOpCreatePreMulSum);
NCCL(ncclRedOpDestroy);
NCCL(ncclMemAlloc);
NCCL(ncclMemFree);
NCCL(ncclCommRegister);
NCCL(ncclCommDeregister);
#if NCCL_VERSION_CODE >= 22700
NCCL(ncclCommWindowRegister);
NCCL(ncclCommWindowDeregister);
static_assert(equal(hvdtune::kNcclSymmetricWindow, NCCL_WIN_COLL_SYMMETRIC));
#endif

// Of NCCL 2.27 or later ours is the beginning; of an older one so far as that goes.
#if NCCL_VERSION_CODE >= 22700
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(offsetof(NcclConfig, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(NcclConfig, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(NcclConfig, collnet_enable) == offsetof(ncclConfig_t, collnetEnable));
static_assert(offsetof(NcclConfig, cta_policy) == offsetof(ncclConfig_t, CTAPolicy));
static_assert(offsetof(NcclConfig, shrink_share) == offsetof(ncclConfig_t, shrinkShare));
static_assert(offsetof(NcclConfig, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs));
#endif
static_assert(offsetof(NcclConfig, comm_name) <= sizeof(ncclConfig_t));
static_assert(offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(equal(NcclConfig::kUnset, NCCL_CONFIG_UNDEF_INT));
static_assert(sizeof(hvdtune::NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(equal(hvdtune::kNcclScalarHostImmediate, ncclScalarHostImmediate));

static_assert(equal(hvdtune::NcclResult::kInvalidArgument, ncclInvalidArgument));
static_assert(equal(hvdtune::NcclResult::kInvalidUsage, ncclInvalidUsage));
static_assert(equal(hvdtune::NcclResult::kRemoteError, ncclRemoteError));
static_assert(equal(hvdtune::NcclResult::kInProgress, ncclInProgress));
static_assert(equal(hvdtune::NcclType::kInt8, ncclInt8));
static_assert(equal(hvdtune::NcclType::kUint8, ncclUint8));
static_assert(equal(hvdtune::NcclType::kInt32, ncclInt32));
static_assert(equal(hvdtune::NcclType::kInt64, ncclInt64));
static_assert(equal(hvdtune::NcclType::kFloat16, ncclFloat16));
static_assert(equal(hvdtune::NcclType::kFloat32, ncclFloat32));
static_assert(equal(hvdtune::NcclType::kFloat64, ncclFloat64));
static_assert(equal(hvdtune::NcclType::kBfloat16, ncclBfloat16));
static_assert(equal(hvdtune::NcclOp::kSum, ncclSum));
static_assert(equal(hvdtune::NcclOp::kProd, ncclProd));
static_assert(equal(hvdtune::NcclOp::kMax, ncclMax));
static_assert(equal(hvdtune::NcclOp::kMin, ncclMin));
#endif

#ifdef NVTX_VERSION
namespace nvtx = hvdtune::nvtx;

static_assert(sizeof(nvtx::EventAttributes) == sizeof(nvtxEventAttributes_t));
#define ATTRIBUTE(ours, theirs) \
  static_assert(offsetof(nvtx::EventAttributes, ours) == offsetof(nvtxEventAttributes_t, theirs))
ATTRIBUTE(version, version);
ATTRIBUTE(size, size);
ATTRIBUTE(category, category);
ATTRIBUTE(color_type, colorType);
ATTRIBUTE(color, color);
ATTRIBUTE(payload_type, payloadType);
ATTRIBUTE(payload, payload);
ATTRIBUTE(message_type, messageType);
ATTRIBUTE(message, message);
static_assert(sizeof(nvtx::ExportTableCallbacks) == sizeof(NvtxExportTableCallbacks));
static_assert(sizeof(nvtx::ExportTableVersionInfo) == sizeof(NvtxExportTableVersionInfo));
static_assert(offsetof(nvtx::ExportTableVersionInfo, SetInjectionNvtxVersion) ==
              offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));
static_assert(nvtx::kVersion == NVTX_VERSION && nvtx::kAscii == NVTX_MESSAGE_TYPE_ASCII);
static_assert(nvtx::kCallbacks == NVTX_ETID_CALLBACKS &&
              nvtx::kVersionInfo == NVTX_ETID_VERSIONINFO);
static_assert(nvtx::kModules == NVTX_CB_MODULE_SIZE && nvtx::kCore2 == NVTX_CB_MODULE_CORE2);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_CORE] == NVTX_CBID_CORE_SIZE);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_CUDA] == NVTX_CBID_CUDA_SIZE);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_OPENCL] == NVTX_CBID_OPENCL_SIZE);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_CUDART] == NVTX_CBID_CUDART_SIZE);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_CORE2] == NVTX_CBID_CORE2_SIZE);
static_assert(nvtx::kModuleSizes[NVTX_CB_MODULE_SYNC] == NVTX_CBID_SYNC_SIZE);
static_assert(nvtx::kDomainRangeStartEx == NVTX_CBID_CORE2_DomainRangeStartEx);
static_assert(nvtx::kDomainRangeEnd == NVTX_CBID_CORE2_DomainRangeEnd);
static_assert(nvtx::kDomainRangePushEx == NVTX_CBID_CORE2_DomainRangePushEx);
static_assert(nvtx::kDomainRangePop == NVTX_CBID_CORE2_DomainRangePop);
static_assert(nvtx::kDomainCreateA == NVTX_CBID_CORE2_DomainCreateA);
static_assert(kSame<nvtx::GetExportTable, NvtxGetExportTableFunc_t>);
static_assert(kSame<nvtx::InitializeInjection, NvtxInitializeInjectionNvtxFunc_t>);
static_assert(kSame<nvtx::CreateDomain, nvtxDomainCreateA_impl_fntype>);
static_assert(kSame<nvtx::StartRange, nvtxDomainRangeStartEx_impl_fntype>);
static_assert(kSame<nvtx::EndRange, nvtxDomainRangeEnd_impl_fntype>);
static_assert(kSame<nvtx::PushRange, nvtxDomainRangePushEx_impl_fntype>);
static_assert(kSame<nvtx::PopRange, nvtxDomainRangePop_impl_fntype>);
#endif

}  // namespace
