#include "collective/kernels/kernels.h"

#include "base/check.h"
#include "collective/kernels/kernels_tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hvdtune {

namespace {

#if defined(__x86_64__)

// Not every compiler we support knows "f16c" in __builtin_cpu_supports.
bool cpu_has_f16c() {
  constexpr unsigned kF16c = 1u << 29;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16c) != 0;
}

// These list exactly the -m flags in CMakeLists.txt.
bool cpu_runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

bool cpu_runs_avx512() {
  return cpu_runs_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

#endif

KernelOp kernel_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return KernelOp::kSum;
    case ReduceOp::kMin:
      return KernelOp::kMin;
    case ReduceOp::kMax:
      return KernelOp::kMax;
    case ReduceOp::kProduct:
      return KernelOp::kProduct;
    case ReduceOp::kAverage:  // the caller folds the division into `post`
    case ReduceOp::kAdasum:   // no reduction element by element
      break;
  }
  HVD_CHECK(false);
  return KernelOp::kSum;
}

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables{&kPortableKernels};
#if defined(__x86_64__)
  if (cpu_runs_avx2()) tables.push_back(&kAvx2Kernels);
  if (cpu_runs_avx512()) tables.push_back(&kAvx512Kernels);
#endif
  return tables;
}

const KernelTable& best_kernels() {
  static const KernelTable* const best = usable_kernels().back();
  return *best;
}

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  return best_kernels().reduce[static_cast<int>(dtype)][static_cast<int>(kernel_op(op))];
}

ScaleKernel scale_kernel(DType dtype) { return best_kernels().scale[static_cast<int>(dtype)]; }

}  // namespace hvdtune
