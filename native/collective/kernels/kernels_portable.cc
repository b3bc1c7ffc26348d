// 16-byte vectors: SSE2 on x86-64, NEON on aarch64.
#define HVDTUNE_VECTOR_BYTES 16
#include "collective/kernels/kernels_impl.h"
#include "collective/kernels/kernels_tables.h"

namespace hvdtune {

constexpr KernelTable kPortableKernels = make_table("portable");

}  // namespace hvdtune
