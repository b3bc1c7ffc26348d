#include <cstring>

#include "driver.h"
#include "faults.h"
#include "host_kernels.h"
#include "image.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

FAKE_EXPORT CudaResult cuModuleLoadData(CudaModule* module, const void* image) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  if (fault("bad-image")) return CudaResult::kInvalidImage;
  // Real machine code, which nvcc has built in, is for real GPUs.
  if (std::memcmp(image, kImageMagic, sizeof kImageMagic) != 0) return CudaResult::kNoBinaryForGpu;
  int capability = 0;
  std::memcpy(&capability, static_cast<const char*>(image) + sizeof kImageMagic, sizeof capability);
  if (capability > setting("capability", 90)) return CudaResult::kNoBinaryForGpu;
  auto made = std::make_shared<Module>();
  made->context = context;
  *module = driver().modules.add(made);
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuModuleUnload(CudaModule module) {
  const auto removed = driver().modules.remove(module);
  if (!removed) return CudaResult::kInvalidHandle;
  driver().functions.remove_if([&](const Function& f) { return f.module == removed; });
  return CudaResult::kSuccess;
}

FAKE_EXPORT CudaResult cuModuleGetFunction(CudaFunction* function, CudaModule module,
                                           const char* name) {
  const auto of = driver().modules.find(module);
  if (!of) return CudaResult::kInvalidHandle;
  KernelWork nothing{};
  if (!run_on_host(name, nothing, 0, 0)) return CudaResult::kNotFound;
  auto made = std::make_shared<Function>();
  made->context = of->context;
  made->module = of;
  made->name = name;
  *function = driver().functions.add(made);
  return CudaResult::kSuccess;
}

namespace {

/// `work` with the addresses that are behind those of the GPU; false where some are nowhere.
bool translate(KernelWork& work, bool packs) {
  for (int index = 0; index < work.count; ++index) {
    KernelPiece& piece = work.pieces[index];
    // The padding is written, but not read.
    const KernelSize written = packs ? (piece.bytes + 15) / 16 * 16 : piece.bytes;
    if (any_memory(work.packed + piece.begin, written) == nullptr) return false;
    std::byte* const there = any_memory(piece.at, piece.bytes);
    if (there == nullptr) return false;
    piece.at = reinterpret_cast<KernelSize>(there);
  }
  std::byte* const packed = any_memory(work.packed, 1);
  if (packed == nullptr) return false;
  work.packed = reinterpret_cast<KernelSize>(packed);
  return true;
}

}  // namespace

FAKE_EXPORT CudaResult cuLaunchKernel(CudaFunction handle, unsigned blocks, unsigned blocks_y,
                                      unsigned blocks_z, unsigned threads, unsigned threads_y,
                                      unsigned threads_z, unsigned, CudaStream stream_handle,
                                      void** parameters, void** extra) {
  std::shared_ptr<Context> context;
  if (const CudaResult result = enter(context); result != CudaResult::kSuccess) return result;
  const auto function = driver().functions.find(handle);
  const auto stream = stream_of(stream_handle);
  if (!function || function->context != context || !stream) return CudaResult::kInvalidHandle;
  const bool sizes = blocks > 0 && threads == kKernelThreads && blocks_y == 1 && blocks_z == 1 &&
                     threads_y == 1 && threads_z == 1;
  if (!sizes || parameters == nullptr || extra != nullptr) return CudaResult::kInvalidValue;
  if (fault("fail-launch")) return CudaResult::kLaunchFailed;
  KernelWork work{};
  std::memcpy(&work, parameters[0], sizeof work);
  stream->enqueue([work, blocks, threads, name = function->name]() mutable {
    if (const long milliseconds = setting("slow", 0); milliseconds > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    if (fault("fail-kernel")) return CudaResult::kLaunchFailed;
    const bool packs = name.find("unpack") == std::string::npos;
    if (!translate(work, packs)) return CudaResult::kIllegalAddress;
    run_on_host(name, work, blocks, threads);
    return CudaResult::kSuccess;
  });
  return CudaResult::kSuccess;
}
