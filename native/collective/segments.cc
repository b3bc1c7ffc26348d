#include "collective/segments.h"

#include <cstring>

namespace hvdtune {

void SegmentList::copy_out(std::size_t begin, std::size_t bytes, std::byte* to) const {
  for_range(begin, bytes, [&to](const std::byte* piece, std::size_t length) {
    std::memcpy(to, piece, length);
    to += length;
  });
}

void SegmentList::copy_in(std::size_t begin, std::size_t bytes, const std::byte* from) const {
  for_range(begin, bytes, [&from](std::byte* piece, std::size_t length) {
    std::memcpy(piece, from, length);
    from += length;
  });
}

void copy_segments(const SegmentList& from, const SegmentList& to, std::size_t bytes) {
  std::size_t offset = 0;
  from.for_range(0, bytes, [&](const std::byte* piece, std::size_t length) {
    to.for_range(offset, length, [&piece](std::byte* target, std::size_t part) {
      if (target != piece) std::memmove(target, piece, part);
      piece += part;
    });
    offset += length;
  });
}

}  // namespace hvdtune
