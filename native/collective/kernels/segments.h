#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "collective/kernels/copy.h"

namespace hvdtune {

/// Pieces of memory that an algorithm treats as one array of bytes: the tensors of a batch, laid
/// end to end. The list owns nothing; the memory must outlive it.
class SegmentList {
 public:
  void add(void* data, std::size_t bytes) {
    if (bytes == 0) return;
    segments_.push_back({static_cast<std::byte*>(data), bytes, total_});
    total_ += bytes;
  }
  /// Adds [begin, begin + bytes) of another list.
  void add(const SegmentList& from, std::size_t begin, std::size_t bytes) {
    from.for_range(begin, bytes,
                   [this](std::byte* piece, std::size_t length) { add(piece, length); });
  }

  [[nodiscard]] std::size_t bytes() const { return total_; }
  [[nodiscard]] bool empty() const { return total_ == 0; }
  void clear() {
    segments_.clear();
    total_ = 0;
  }

  /// Calls visit(pointer, bytes) for every piece of [begin, begin + bytes), in order.
  template <typename Visit>
  void for_range(std::size_t begin, std::size_t bytes, Visit&& visit) const {
    if (bytes == 0) return;
    HVD_CHECK(begin + bytes <= total_);
    auto at = std::upper_bound(segments_.begin(), segments_.end(), begin,
                               [](std::size_t b, const Segment& s) { return b < s.offset; }) -
              1;
    while (bytes > 0) {
      const std::size_t skip = begin - at->offset;
      const std::size_t piece = std::min(bytes, at->bytes - skip);
      visit(at->data + skip, piece);
      begin += piece;
      bytes -= piece;
      ++at;
    }
  }

  /// Whether two pieces share memory.
  [[nodiscard]] bool overlaps() const;

  /// Copies [begin, begin + bytes) of the list to contiguous memory, and back.
  void copy_out(std::size_t begin, std::size_t bytes, std::byte* to) const;
  void copy_in(std::size_t begin, std::size_t bytes, const std::byte* from,
               CopyKind kind = CopyKind::kCached) const;

 private:
  struct Segment {
    std::byte* data;
    std::size_t bytes;
    std::size_t offset;  // of the first byte in the whole list
  };
  std::vector<Segment> segments_;
  std::size_t total_ = 0;
};

/// Copies the first `bytes` bytes of one list into another; no-op if both are the same memory.
void copy_segments(const SegmentList& from, const SegmentList& to, std::size_t bytes);

/// The same for [begin, begin + bytes).
void copy_segments(const SegmentList& from, const SegmentList& to, std::size_t begin,
                   std::size_t bytes, CopyKind kind);

}  // namespace hvdtune
