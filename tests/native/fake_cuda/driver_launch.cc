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
  const HostKernel kernel = host_kernel(name);
  if (kernel.moves == nullptr && kernel.reduces == nullptr && kernel.meets == nullptr) {
    return CudaResult::kNotFound;
  }
  auto made = std::make_shared<Function>();
  made->context = of->context;
  made->module = of;
  made->kernel = kernel;
  made->packs = std::strncmp(name, "hvdtune_pack", 12) == 0;
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

bool translate(ReduceWork& work, bool) {
  const KernelSize whole = (work.bytes + 15) / 16 * 16;  // the last bytes are read with their 16
  for (int index = 0; index < work.sources; ++index) {
    std::byte* const there = any_memory(work.source[index], whole);
    if (there == nullptr) return false;
    work.source[index] = reinterpret_cast<KernelSize>(there);
  }
  std::byte* const out = any_memory(work.out, work.bytes);
  work.out = reinterpret_cast<KernelSize>(out);
  return out != nullptr;
}

bool translate(MeetingWork& work, bool packs) {
  if (!translate(work.reduce, packs)) return false;
  const auto real = [](KernelSize& address, std::size_t bytes) {
    address = reinterpret_cast<KernelSize>(any_memory(address, bytes));
    return address != 0;
  };
  for (int member = 0; member < work.reduce.sources; ++member) {
    if (!real(work.flags[member], sizeof(MeetingFlags))) return false;
  }
  return real(work.in, work.reduce.bytes) && real(work.over, sizeof(unsigned));
}

/// What the stream does: the parameters as they are now, the memory as it is then.
template <class Work>
Task task(const Function& function, const void* parameters, unsigned blocks) {
  Work work{};
  std::memcpy(&work, parameters, sizeof work);
  return [work, blocks, kernel = function.kernel, packs = function.packs]() mutable {
    if (const long milliseconds = setting("slow", 0); milliseconds > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    if (fault("fail-kernel")) return CudaResult::kLaunchFailed;
    if (!translate(work, packs)) return CudaResult::kIllegalAddress;
    run_on_host(kernel, work, blocks);
    return CudaResult::kSuccess;
  };
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
  if (function->kernel.moves != nullptr) {
    stream->enqueue(task<KernelWork>(*function, parameters[0], blocks));
  } else if (function->kernel.reduces != nullptr) {
    stream->enqueue(task<ReduceWork>(*function, parameters[0], blocks));
  } else {
    stream->enqueue(task<MeetingWork>(*function, parameters[0], blocks));
  }
  return CudaResult::kSuccess;
}
