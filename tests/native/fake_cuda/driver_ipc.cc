#include <unistd.h>

#include <cstring>

#include "driver.h"
#include "faults.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

namespace {

struct MemoryName {
  int pid;
  int device;
  Memory::Export what;
};

struct EventName {
  int pid;
  int fd;
};

template <class Handle, class Name>
Handle to_handle(const Name& name) {
  static_assert(sizeof(Name) <= sizeof(Handle));
  Handle handle{};
  std::memcpy(&handle, &name, sizeof name);
  return handle;
}

template <class Name, class Handle>
Name from_handle(const Handle& handle) {
  Name name{};
  std::memcpy(&name, &handle, sizeof name);
  return name;
}

}  // namespace

FAKE_EXPORT CudaResult cuIpcGetMemHandle(CudaMemoryHandle* handle, CudaPointer pointer) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (fault("no-ipc")) return CudaResult::kNotSupported;
  const auto what = context->memory->share(pointer);
  if (!what) return CudaResult::kInvalidValue;
  *handle = to_handle<CudaMemoryHandle>(MemoryName{getpid(), context->device, *what});
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuIpcOpenMemHandle_v2(CudaPointer* pointer, CudaMemoryHandle handle,
                                             unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (flags != kCudaIpcLazyPeerAccess) return CudaResult::kInvalidValue;
  const auto name = from_handle<MemoryName>(handle);
  // A process does not open its own memory.
  if (name.pid == getpid()) return CudaResult::kInvalidContext;
  if (name.device != context->device && fault("no-peer")) {
    return CudaResult::kPeerAccessUnsupported;
  }
  auto memory = ForeignMemory::open(name.pid, name.what);
  if (!memory) return CudaResult::kInvalidHandle;
  *pointer = memory->pointer();
  const std::lock_guard lock(driver().foreign_mutex);
  driver().foreign[*pointer] = std::move(memory);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuIpcCloseMemHandle(CudaPointer pointer) {
  const std::lock_guard lock(driver().foreign_mutex);
  return driver().foreign.erase(pointer) == 1 ? CudaResult::kSuccess : CudaResult::kInvalidValue;
}

FAKE_EXPORT CudaResult cuIpcGetEventHandle(CudaEventHandle* handle, CudaEvent event) {
  const auto found = driver().events.find(event);
  if (!found || !found->shared || found->shared->fd() < 0) return CudaResult::kInvalidHandle;
  *handle = to_handle<CudaEventHandle>(EventName{getpid(), found->shared->fd()});
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuIpcOpenEventHandle(CudaEvent* event, CudaEventHandle handle) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto name = from_handle<EventName>(handle);
  if (name.pid == getpid()) return CudaResult::kInvalidContext;
  auto shared = SharedEvent::open(name.pid, name.fd);
  if (!shared) return CudaResult::kInvalidHandle;
  auto made = std::make_shared<Event>();
  made->context = context;
  made->flags = kCudaEventInterprocess | kCudaEventDisableTiming;
  made->shared = std::move(shared);
  *event = driver().events.add(made);
  return CudaResult::kSuccess;
}
