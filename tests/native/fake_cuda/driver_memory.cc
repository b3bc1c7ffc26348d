#include <cstring>

#include "driver.h"
#include "faults.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

FAKE_EXPORT CudaResult cuMemAlloc_v2(CudaPointer* pointer, std::size_t bytes) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (bytes == 0) return CudaResult::kInvalidValue;
  *pointer = context->memory->allocate(bytes);
  return *pointer == 0 ? CudaResult::kOutOfMemory : CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuMemFree_v2(CudaPointer pointer) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  return context->memory->free(pointer) ? CudaResult::kSuccess : CudaResult::kInvalidValue;
}

FAKE_EXPORT CudaResult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (bytes == 0 || flags > 7) return CudaResult::kInvalidValue;
  if (static_cast<long>(bytes) > setting("pinned", static_cast<long>(bytes))) {
    return CudaResult::kOutOfMemory;
  }
  *memory = driver().pinned.allocate(bytes);
  return *memory == nullptr ? CudaResult::kOutOfMemory : CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuMemFreeHost(void* memory) {
  return driver().pinned.free(memory) ? CudaResult::kSuccess : CudaResult::kInvalidValue;
}

FAKE_EXPORT CudaResult cuPointerGetAttribute(void* value, CudaPointerAttribute attribute,
                                             CudaPointer pointer) {
  int device = -1;
  for (int index = 0; index < kMostDevices; ++index) {
    if (memory_of(index, pointer, 1) != nullptr) device = index;
  }
  if (device < 0 && driver().pinned.find(pointer, 1) == nullptr) return CudaResult::kInvalidValue;
  switch (attribute) {
    case CudaPointerAttribute::kMemoryType:
      *static_cast<unsigned*>(value) = device < 0 ? kCudaMemoryHost : kCudaMemoryDevice;
      return CudaResult::kSuccess;
    case CudaPointerAttribute::kDeviceOrdinal:
      *static_cast<int*>(value) = device < 0 ? 0 : device;
      return CudaResult::kSuccess;
  }
  return CudaResult::kInvalidValue;
}

namespace {

void linger() {
  if (const long milliseconds = setting("slow", 0); milliseconds > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
}

/// Of plain memory of the host, as callers of the synchronous functions bring it.
std::byte* plain(CudaPointer pointer, std::size_t bytes) {
  for (const Memory& memory : driver().memory) {
    if (memory.owns(pointer)) return memory.find(pointer, bytes);
  }
  return reinterpret_cast<std::byte*>(pointer);
}

}  // namespace

FAKE_EXPORT CudaResult cuMemcpyAsync(CudaPointer to, CudaPointer from, std::size_t bytes,
                                     CudaStream handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  // Ordinary host memory would do on a real machine, but the call would wait.
  if (any_memory(to, bytes) == nullptr || any_memory(from, bytes) == nullptr) {
    return CudaResult::kInvalidValue;
  }
  if (fault("fail-copy")) return CudaResult::kInvalidValue;
  stream->enqueue([=] {
    linger();
    std::byte* const target = any_memory(to, bytes);
    const std::byte* const source = any_memory(from, bytes);
    if (target == nullptr || source == nullptr) return CudaResult::kIllegalAddress;
    std::memmove(target, source, bytes);
    return CudaResult::kSuccess;
  });
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuMemsetD8Async(CudaPointer to, unsigned char value, std::size_t bytes,
                                       CudaStream handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto stream = stream_of(handle);
  if (!stream) return CudaResult::kInvalidHandle;
  if (any_memory(to, bytes) == nullptr) return CudaResult::kInvalidValue;
  stream->enqueue([=] {
    linger();
    std::byte* const target = any_memory(to, bytes);
    if (target == nullptr) return CudaResult::kIllegalAddress;
    std::memset(target, value, bytes);
    return CudaResult::kSuccess;
  });
  return CudaResult::kSuccess;
}

/// Synchronous, after what is in stream 0 and in what it waits for; between any two addresses.
FAKE_EXPORT CudaResult cuMemcpy(CudaPointer to, CudaPointer from, std::size_t bytes) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (plain(to, bytes) == nullptr || plain(from, bytes) == nullptr) {
    return CudaResult::kInvalidValue;
  }
  context->legacy->enqueue([] { return CudaResult::kSuccess; });
  context->legacy->mark()->wait();
  std::memmove(plain(to, bytes), plain(from, bytes), bytes);
  return context->failed;
}

FAKE_EXPORT CudaResult cuMemcpyHtoD_v2(CudaPointer to, const void* from, std::size_t bytes) {
  return cuMemcpy(to, reinterpret_cast<CudaPointer>(from), bytes);
}

FAKE_EXPORT CudaResult cuMemcpyDtoH_v2(void* to, CudaPointer from, std::size_t bytes) {
  return cuMemcpy(reinterpret_cast<CudaPointer>(to), from, bytes);
}
