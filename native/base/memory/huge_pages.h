#pragma once

#include <cstddef>

namespace hvdtune {

/// Asks the kernel for huge pages for those parts of [data, data + bytes) that nobody has touched
/// yet, as in a new large result. One fault then maps 2 MiB instead of 4 KiB, so the first write is
/// several times faster. Does nothing below 2 MiB. Touches no page, gives no huge page to memory
/// outside the range, and never fails: if the kernel refuses, nothing changes.
void prefer_huge_pages(void* data, std::size_t bytes) noexcept;

}  // namespace hvdtune
