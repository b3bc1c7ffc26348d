#include "collective/kernels/reduction.h"

#include <algorithm>
#include <array>
#include <vector>

#include "collective/kernels/kernels.h"

namespace hvdtune {
namespace {

using Sources = std::array<const void*, kMostSources>;

void shifted(const std::byte* const* sources, std::size_t count, std::size_t offset, Sources& out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = sources[i] + offset;
}

/// Multiplies every element in place.
void scale_segments(const SegmentList& data, DType dtype, double scale) {
  if (scale == 1.0) return;
  const ScaleKernel kernel = scale_kernel(dtype);
  data.for_range(0, data.bytes(), [&](std::byte* piece, std::size_t length) {
    kernel(piece, piece, length / dtype_size(dtype), scale);
  });
}

}  // namespace

Part chunk_part(std::size_t begin, std::size_t bytes, std::size_t member, std::size_t members) {
  const std::size_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const std::size_t stride = (lines + members - 1) / members * kCacheLine;
  const std::size_t from = std::min(member * stride, bytes);
  const std::size_t to = std::min(from + stride, bytes);
  return {begin + from, from, to - from};
}

void pack(const SegmentList& from, std::size_t begin, std::size_t bytes, std::byte* to, DType dtype,
          double scale, CopyKind kind) {
  if (scale == 1.0) {
    from.for_range(begin, bytes, [&to, kind](const std::byte* piece, std::size_t length) {
      copy_unordered(to, piece, length, kind);
      to += length;
    });
    return;
  }
  const ScaleKernel kernel = scale_kernel(dtype);
  from.for_range(begin, bytes, [&](const std::byte* piece, std::size_t length) {
    if (kind == CopyKind::kCached) {
      kernel(to, piece, length / dtype_size(dtype), scale);
    } else {
      alignas(kCacheLine) std::array<std::byte, kTile> tile;
      for (std::size_t at = 0; at < length; at += kTile) {
        const std::size_t part = std::min(kTile, length - at);
        kernel(tile.data(), piece + at, part / dtype_size(dtype), scale);
        copy_unordered(to + at, tile.data(), part, kind);
      }
    }
    to += length;
  });
}

void reduce_alone(const SegmentList& in, const SegmentList& out, DType dtype, double prescale,
                  double postscale) {
  const bool scaled = prescale != 1.0 || postscale != 1.0;
  if (!scaled || !out.overlaps()) {
    copy_segments(in, out, in.bytes());
    scale_segments(out, dtype, prescale);
    scale_segments(out, dtype, postscale);
    return;
  }
  std::vector<std::byte> copy(in.bytes());
  in.copy_out(0, copy.size(), copy.data());
  SegmentList whole;
  whole.add(copy.data(), copy.size());
  scale_segments(whole, dtype, prescale);
  scale_segments(whole, dtype, postscale);
  copy_segments(whole, out, whole.bytes());
}

void reduce_block(const std::byte* const* sources, std::size_t count, std::byte* result,
                  std::size_t bytes, DType dtype, ReduceOp op, double post) {
  Sources at;
  shifted(sources, count, 0, at);
  reduce_kernel(dtype, op)(result, at.data(), static_cast<int>(count), bytes / dtype_size(dtype),
                           post);
}

void reduce_with_own(const std::byte* const* sources, std::size_t count, std::size_t own,
                     const SegmentList& own_data, std::size_t begin, std::size_t bytes,
                     std::byte* result, DType dtype, ReduceOp op, double post) {
  const ReduceKernel kernel = reduce_kernel(dtype, op);
  std::size_t offset = 0;
  own_data.for_range(begin, bytes, [&](const std::byte* piece, std::size_t length) {
    Sources at;
    shifted(sources, count, offset, at);
    at[own] = piece;
    kernel(result + offset, at.data(), static_cast<int>(count), length / dtype_size(dtype), post);
    offset += length;
  });
}

void reduce_to_segments(const std::byte* const* sources, std::size_t count,
                        const SegmentList& result, std::size_t begin, std::size_t bytes,
                        DType dtype, ReduceOp op, double post) {
  const ReduceKernel kernel = reduce_kernel(dtype, op);
  std::size_t offset = 0;
  result.for_range(begin, bytes, [&](std::byte* piece, std::size_t length) {
    Sources at;
    shifted(sources, count, offset, at);
    kernel(piece, at.data(), static_cast<int>(count), length / dtype_size(dtype), post);
    offset += length;
  });
}

void reduce_with_own_to_segments(const std::byte* const* sources, std::size_t count,
                                 std::size_t own, const SegmentList& own_data,
                                 const SegmentList& result, std::size_t begin, std::size_t bytes,
                                 DType dtype, ReduceOp op, double post) {
  const ReduceKernel kernel = reduce_kernel(dtype, op);
  std::size_t offset = 0;
  result.for_range(begin, bytes, [&](std::byte* target, std::size_t length) {
    own_data.for_range(begin + offset, length, [&](const std::byte* piece, std::size_t part) {
      Sources at;
      shifted(sources, count, offset, at);
      at[own] = piece;
      kernel(target, at.data(), static_cast<int>(count), part / dtype_size(dtype), post);
      target += part;
      offset += part;
    });
  });
}

}  // namespace hvdtune
