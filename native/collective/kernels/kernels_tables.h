#pragma once

#include "collective/kernels/kernels.h"

namespace hvdtune {

// One table per file, constant-initialised: naming a table runs no code of its instruction set.
extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace hvdtune
