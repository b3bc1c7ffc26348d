#pragma once

#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "base/op_kind.h"

namespace hvdtune {

/// dst[i] = round(post * (src[0][i] OP src[1][i] OP ...)) for `count` elements, evaluated in the
/// order of `src` (at least one). `dst` may equal any src[k] exactly, but not overlap it partly.
/// Pointers need only element alignment. Thread-safe, allocates nothing, cannot fail.
///
/// - float16, bfloat16: accumulated and scaled in float32, rounded once to nearest even.
/// - float32 in float32 (`post` rounded to float32), float64 in float64.
/// - integers: Sum and Product wrap around; `post` is applied in float64, the result truncated
///   toward zero and saturated to the type's range (a NaN gives 0).
/// - bool (bytes 0 and 1): Sum and Max are OR, Product and Min are AND; `post` is ignored.
/// - Min and Max of floating types give NaN if any source is NaN.
///
/// All tables give the same bits, except for the sign and payload of a NaN.
using ReduceKernel = void (*)(void* dst, const void* const* src, int sources, std::size_t count,
                              double post);

/// dst[i] = round(src[i] * scale), with the conversions of `post` above; `dst` may equal `src`.
using ScaleKernel = void (*)(void* dst, const void* src, std::size_t count, double scale);

/// Columns of KernelTable::reduce.
enum class KernelOp : int { kSum = 0, kMin = 1, kMax = 2, kProduct = 3 };

inline constexpr int kKernelOpCount = 4;

/// The kernels compiled for one instruction set.
struct KernelTable {
  const char* name;                                  ///< "portable", "avx2", "avx512"
  ReduceKernel reduce[kDTypeCount][kKernelOpCount];  ///< [DType][KernelOp]
  ScaleKernel scale[kDTypeCount];                    ///< [DType]
};

/// The fastest table that this CPU can run; chosen at the first call.
const KernelTable& best_kernels();

/// Every table that this CPU can run, slowest first.
std::vector<const KernelTable*> usable_kernels();

/// The best kernel for `op`. Not for kAverage: use Sum with `post` = 1 / number of ranks.
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

/// The best scaling kernel.
ScaleKernel scale_kernel(DType dtype);

}  // namespace hvdtune
