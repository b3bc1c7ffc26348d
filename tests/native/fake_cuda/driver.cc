#include "driver.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "faults.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

namespace fake_cuda {
namespace {

thread_local std::vector<CudaContext> contexts_of_thread;

}  // namespace

Driver& driver() {
  static auto* const all = new Driver;
  return *all;
}

int devices() {
  if (fault("no-device")) return 0;
  return std::clamp(static_cast<int>(setting("devices", 2)), 0, kMostDevices);
}

std::shared_ptr<Context> current() {
  return contexts_of_thread.empty() ? nullptr : driver().contexts.find(contexts_of_thread.back());
}

CudaResult enter(std::shared_ptr<Context>& context) {
  if (!driver().started) return CudaResult::kNotInitialized;
  context = current();
  if (!context) return CudaResult::kInvalidContext;
  return context->failed;
}

std::byte* any_memory(CudaPointer pointer, std::size_t bytes) {
  for (Memory& memory : driver().memory) {
    if (memory.owns(pointer)) return memory.find(pointer, bytes);
  }
  {
    const std::lock_guard lock(driver().foreign_mutex);
    const auto after = driver().foreign.upper_bound(pointer);
    if (after != driver().foreign.begin()) {
      std::byte* const found = std::prev(after)->second->find(pointer, bytes);
      if (found != nullptr) return found;
    }
  }
  return driver().pinned.find(pointer, bytes);
}

int current_device() {
  const auto context = current();
  return context ? context->device : -1;
}

std::byte* memory_of(int device, CudaPointer pointer, std::size_t bytes) {
  return driver().memory[static_cast<std::size_t>(device)].find(pointer, bytes);
}

}  // namespace fake_cuda

FAKE_EXPORT FakeCudaLive fake_cuda_live() {
  Driver& all = driver();
  FakeCudaLive live{};
  for (const Memory& memory : all.memory) live.memory += memory.allocations();
  live.pinned = all.pinned.allocations();
  {
    const std::lock_guard lock(all.foreign_mutex);
    live.memory += all.foreign.size();
  }
  live.streams = all.streams.size();
  live.events = all.events.size();
  live.modules = all.modules.size();
  live.contexts = all.contexts.size();
  return live;
}

FAKE_EXPORT CudaResult cuInit(unsigned flags) {
  if (flags != 0) return CudaResult::kInvalidValue;
  if (devices() == 0) return CudaResult::kNoDevice;
  driver().started = true;
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(setting("driver", 12040));
  return CudaResult::kSuccess;
}

namespace {

struct ResultText {
  CudaResult result;
  const char* name;
  const char* text;
};

constexpr ResultText kResults[] = {
    {CudaResult::kSuccess, "CUDA_SUCCESS", "no error"},
    {CudaResult::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CudaResult::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CudaResult::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CudaResult::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CudaResult::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CudaResult::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CudaResult::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CudaResult::kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CudaResult::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CudaResult::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CudaResult::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CudaResult::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CudaResult::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

CudaResult text_of(CudaResult result, const char** text, const char* ResultText::* member) {
  for (const ResultText& known : kResults) {
    if (known.result != result) continue;
    *text = known.*member;
    return CudaResult::kSuccess;
  }
  *text = nullptr;
  return CudaResult::kInvalidValue;
}

bool is_device(int device) { return device >= 0 && device < devices(); }

}  // namespace

FAKE_EXPORT CudaResult cuGetErrorName(CudaResult result, const char** name) {
  return text_of(result, name, &ResultText::name);
}

FAKE_EXPORT CudaResult cuGetErrorString(CudaResult result, const char** text) {
  return text_of(result, text, &ResultText::text);
}

FAKE_EXPORT CudaResult cuDeviceGetCount(int* count) {
  if (!driver().started) return CudaResult::kNotInitialized;
  *count = devices();
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDeviceGet(int* device, int index) {
  if (!driver().started) return CudaResult::kNotInitialized;
  if (!is_device(index)) return CudaResult::kInvalidDevice;
  *device = index;
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDeviceGetName(char* name, int length, int device) {
  if (!is_device(device) || length < 1) return CudaResult::kInvalidDevice;
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length) - 1);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  if (!is_device(device)) return CudaResult::kInvalidDevice;
  *bytes = std::size_t{8} << 30;
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDeviceGetAttribute(int* value, CudaAttribute attribute, int device) {
  if (!is_device(device)) return CudaResult::kInvalidDevice;
  const auto capability = static_cast<int>(setting("capability", 90));
  switch (attribute) {
    case CudaAttribute::kMultiprocessors:
      *value = 4;
      return CudaResult::kSuccess;
    case CudaAttribute::kCapabilityMajor:
      *value = capability / 10;
      return CudaResult::kSuccess;
    case CudaAttribute::kCapabilityMinor:
      *value = capability % 10;
      return CudaResult::kSuccess;
  }
  return CudaResult::kInvalidValue;
}

FAKE_EXPORT CudaResult cuDeviceGetUuid_v2(CudaUuid* uuid, int device) {
  if (!is_device(device)) return CudaResult::kInvalidDevice;
  *uuid = {"hvdtune fake gp"};
  uuid->bytes[15] = static_cast<char>('0' + device);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, int device) {
  if (!driver().started) return CudaResult::kNotInitialized;
  if (!is_device(device)) return CudaResult::kInvalidDevice;
  const std::lock_guard lock(driver().mutex);
  Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
  if (primary.retained++ == 0) {
    auto made = std::make_shared<Context>();
    made->device = device;
    made->memory = &driver().memory[static_cast<std::size_t>(device)];
    made->legacy = Stream::start(made, true);
    primary.handle = driver().contexts.add(made);
  }
  *context = primary.handle;
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuDevicePrimaryCtxRelease_v2(int device) {
  if (!is_device(device)) return CudaResult::kInvalidDevice;
  const std::lock_guard lock(driver().mutex);
  Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
  if (primary.retained == 0) return CudaResult::kInvalidContext;
  if (--primary.retained > 0) return CudaResult::kSuccess;
  const auto context = driver().contexts.remove(primary.handle);
  // Whatever still hangs in it is of no use any more.
  const auto of_it = [&](const auto& object) { return object.context == context; };
  driver().streams.remove_if([&](const Stream& s) { return &s.context() == context.get(); });
  driver().events.remove_if(of_it);
  driver().modules.remove_if(of_it);
  driver().functions.remove_if(of_it);
  context->memory->free_all();
  std::shared_ptr<Stream> legacy;  // a stream and its context keep each other
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  const std::lock_guard of_context(context->mutex);
  legacy.swap(context->legacy);
  per_thread.swap(context->per_thread);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuCtxPushCurrent_v2(CudaContext context) {
  if (!driver().contexts.find(context)) return CudaResult::kInvalidContext;
  contexts_of_thread.push_back(context);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuCtxPopCurrent_v2(CudaContext* context) {
  if (contexts_of_thread.empty()) return CudaResult::kInvalidContext;
  *context = contexts_of_thread.back();
  contexts_of_thread.pop_back();
  return CudaResult::kSuccess;
}

/// What users of CUDA's runtime have: a context that stays current.
FAKE_EXPORT CudaResult cuCtxSetCurrent(CudaContext context) {
  if (!contexts_of_thread.empty()) contexts_of_thread.pop_back();
  return context == nullptr ? CudaResult::kSuccess : cuCtxPushCurrent_v2(context);
}

FAKE_EXPORT CudaResult cuCtxGetCurrent(CudaContext* context) {
  *context = contexts_of_thread.empty() ? nullptr : contexts_of_thread.back();
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CudaResult::kSuccess;
}
