#if defined(__x86_64__)

#define HVDTUNE_VECTOR_BYTES 64
#include "collective/kernels/kernels_impl.h"
#include "collective/kernels/kernels_tables.h"

namespace hvdtune {

constexpr KernelTable kAvx512Kernels = make_table("avx512");

}  // namespace hvdtune

#endif
