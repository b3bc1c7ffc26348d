#if defined(__x86_64__)

#define HVDTUNE_VECTOR_BYTES 32
#include "collective/kernels/kernels_impl.h"
#include "collective/kernels/kernels_tables.h"

namespace hvdtune {

constexpr KernelTable kAvx2Kernels = make_table("avx2");

}  // namespace hvdtune

#endif
