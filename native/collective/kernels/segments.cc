#include "collective/kernels/segments.h"

#include <algorithm>
#include <functional>

namespace hvdtune {

bool SegmentList::overlaps() const {
  if (segments_.size() < 2) return false;
  const auto meet = [](const Segment& a, const Segment& b) { return a.data + a.bytes > b.data; };
  std::vector<Segment> sorted = segments_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Segment& a, const Segment& b) { return std::less<>()(a.data, b.data); });
  return std::adjacent_find(sorted.begin(), sorted.end(), meet) != sorted.end();
}

void SegmentList::copy_out(std::size_t begin, std::size_t bytes, std::byte* to) const {
  for_range(begin, bytes, [&to](const std::byte* piece, std::size_t length) {
    copy_bytes(to, piece, length, CopyKind::kCached);
    to += length;
  });
}

void SegmentList::copy_in(std::size_t begin, std::size_t bytes, const std::byte* from,
                          CopyKind kind) const {
  for_range(begin, bytes, [&from, kind](std::byte* piece, std::size_t length) {
    copy_bytes(piece, from, length, kind);
    from += length;
  });
}

void copy_segments(const SegmentList& from, const SegmentList& to, std::size_t bytes) {
  copy_segments(from, to, 0, bytes, CopyKind::kCached);
}

void copy_segments(const SegmentList& from, const SegmentList& to, std::size_t begin,
                   std::size_t bytes, CopyKind kind) {
  std::size_t offset = begin;
  from.for_range(begin, bytes, [&](const std::byte* piece, std::size_t length) {
    to.for_range(offset, length, [&piece, kind](std::byte* target, std::size_t part) {
      if (target != piece) copy_bytes(target, piece, part, kind);
      piece += part;
    });
    offset += length;
  });
}

}  // namespace hvdtune
