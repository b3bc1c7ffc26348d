#include "host_kernels.h"

#include <chrono>
#include <map>
#include <thread>

#include "base/half.h"

// What CUDA's compilers know by themselves.

namespace {

struct Place {
  unsigned x = 0;
};

// One at a time: a kernel's threads run in the thread of its stream.
thread_local Place threadIdx;
thread_local Place blockIdx;
thread_local Place gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

}  // namespace

#define HVD_DEVICE inline
#define HVD_KERNEL static void
#define HVD_REDUCING_KERNEL static void
#define HVD_PARAMETER const
#define HVD_PAUSE() std::this_thread::sleep_for(std::chrono::microseconds(5))
#define HVD_MEETING_KERNEL(name, Kind)                                              \
  static constexpr fake_cuda::HostMeeting name = {&hvdtune::bring<Kind::Element>,   \
                                                  &hvdtune::arrive, &hvdtune::meet, \
                                                  &hvdtune::reduce<Kind>, &hvdtune::leave};

// Tensors of all types are read and written as what they are moved as.
#include "device/kernels/kernels.cu"

namespace fake_cuda {
namespace {

const std::map<std::string, HostKernel>& kernels() {
#define MOVES(name)                                             \
  {"hvdtune_pack_" #name, {hvdtune_pack_##name, nullptr}}, {    \
    "hvdtune_unpack_" #name, { hvdtune_unpack_##name, nullptr } \
  }
#define REDUCES(name)                                                 \
  {"hvdtune_reduce_" #name, {nullptr, hvdtune_reduce_##name}}, {      \
    "hvdtune_meet_" #name, { nullptr, nullptr, &hvdtune_meet_##name } \
  }
  static const auto* const all = new std::map<std::string, HostKernel>{
      MOVES(copy),      MOVES(uint8),     MOVES(int8),    MOVES(uint16),    MOVES(int16),
      MOVES(int32),     MOVES(int64),     MOVES(float16), MOVES(float32),   MOVES(float64),
      MOVES(bfloat16),  REDUCES(bool),    REDUCES(uint8), REDUCES(int8),    REDUCES(uint16),
      REDUCES(int16),   REDUCES(int32),   REDUCES(int64), REDUCES(float16), REDUCES(float32),
      REDUCES(float64), REDUCES(bfloat16)};
#undef MOVES
#undef REDUCES
  return *all;
}

template <class Work>
void run_all(void (*kernel)(Work), const Work& work, unsigned blocks) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < hvdtune::kKernelThreads; ++threadIdx.x) kernel(work);
  }
}

}  // namespace

HostKernel host_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? HostKernel{} : found->second;
}

void run_on_host(const HostKernel& kernel, const hvdtune::KernelWork& work, unsigned blocks) {
  run_all(kernel.moves, work, blocks);
}

void run_on_host(const HostKernel& kernel, const hvdtune::ReduceWork& work, unsigned blocks) {
  run_all(kernel.reduces, work, blocks);
}

void run_on_host(const HostKernel& kernel, const hvdtune::MeetingWork& work, unsigned blocks) {
  const auto all_threads = [](const auto& step) {
    for (threadIdx.x = 0; threadIdx.x < hvdtune::kKernelThreads; ++threadIdx.x) step();
  };
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    all_threads([&] { kernel.meets->bring(work); });
    all_threads([&] { kernel.meets->arrive(work); });
    bool all = true;
    all_threads([&] { all = kernel.meets->meet(work) && all; });
    if (!all) continue;
    all_threads([&] { kernel.meets->reduce(work.reduce); });
    all_threads([&] { kernel.meets->leave(work); });
  }
}

}  // namespace fake_cuda
