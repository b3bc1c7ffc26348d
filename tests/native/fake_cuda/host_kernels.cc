#include "host_kernels.h"

#include <map>

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
#define HVD_PARAMETER const

// Tensors of all types are read and written as what they are moved as.
#include "device/kernels.cu"

namespace fake_cuda {
namespace {

using Kernel = void(hvdtune::KernelWork);

const std::map<std::string, Kernel*>& kernels() {
#define BOTH(name) \
  {"hvdtune_pack_" #name, hvdtune_pack_##name}, { "hvdtune_unpack_" #name, hvdtune_unpack_##name }
  static const auto* const all = new std::map<std::string, Kernel*>{
      BOTH(copy),  BOTH(uint8),   BOTH(int8),    BOTH(uint16),  BOTH(int16),   BOTH(int32),
      BOTH(int64), BOTH(float16), BOTH(float32), BOTH(float64), BOTH(bfloat16)};
#undef BOTH
  return *all;
}

}  // namespace

bool run_on_host(const std::string& name, const hvdtune::KernelWork& work, unsigned blocks,
                 unsigned threads) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return false;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) found->second(work);
  }
  return true;
}

}  // namespace fake_cuda
