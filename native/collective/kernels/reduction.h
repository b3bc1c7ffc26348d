#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/op_kind.h"
#include "collective/kernels/copy.h"
#include "collective/kernels/segments.h"

namespace hvdtune {

inline constexpr std::size_t kCacheLine = 64;
/// Bytes that are processed and passed on while they are in the first-level cache.
inline constexpr std::size_t kTile = 8 << 10;

/// The share of one member in a chunk.
struct Part {
  std::size_t begin;     ///< of the part, in the whole message
  std::size_t in_chunk;  ///< of the part, in its chunk
  std::size_t bytes;
};

/// Cuts a chunk of `bytes` bytes that starts at `begin` into `members` parts of whole cache lines;
/// the last ones may be shorter or empty.
Part chunk_part(std::size_t begin, std::size_t bytes, std::size_t member, std::size_t members);

/// Copies [begin, begin + bytes) of `from` to `to`, multiplied by `scale`. A streamed copy needs
/// order_copies() afterwards.
void pack(const SegmentList& from, std::size_t begin, std::size_t bytes, std::byte* to, DType dtype,
          double scale, CopyKind kind = CopyKind::kCached);

/// Most sources of one reduction.
inline constexpr std::size_t kMostSources = 1024;

/// Copies `in` to `out`, which has as many bytes, multiplied by both factors: the reduction of a
/// single source. A tensor that is in the batch twice, in place, is multiplied only once.
void reduce_alone(const SegmentList& in, const SegmentList& out, DType dtype, double prescale,
                  double postscale);

/// result = post * (sources[0] OP … OP sources[count-1]), `bytes` bytes each, in that order.
void reduce_block(const std::byte* const* sources, std::size_t count, std::byte* result,
                  std::size_t bytes, DType dtype, ReduceOp op, double post);

/// The same, but source number `own` is [begin, begin + bytes) of `own_data` (sources[own] is not
/// read).
void reduce_with_own(const std::byte* const* sources, std::size_t count, std::size_t own,
                     const SegmentList& own_data, std::size_t begin, std::size_t bytes,
                     std::byte* result, DType dtype, ReduceOp op, double post);

/// The same as reduce_block, with the result written to [begin, begin + bytes) of `result`.
void reduce_to_segments(const std::byte* const* sources, std::size_t count,
                        const SegmentList& result, std::size_t begin, std::size_t bytes,
                        DType dtype, ReduceOp op, double post);

/// The same, but source number `own` is [begin, begin + bytes) of `own_data` (sources[own] is not
/// read).
void reduce_with_own_to_segments(const std::byte* const* sources, std::size_t count,
                                 std::size_t own, const SegmentList& own_data,
                                 const SegmentList& result, std::size_t begin, std::size_t bytes,
                                 DType dtype, ReduceOp op, double post);

}  // namespace hvdtune
