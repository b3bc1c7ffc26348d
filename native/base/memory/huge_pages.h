#pragma once

#include <cstddef>

namespace hvdtune {

/// Asks the kernel for huge pages where [data, data + bytes) is memory that nobody has touched yet,
/// as large results are: one fault then brings in 2 MiB instead of 4 KiB, which makes writing them
/// for the first time several times faster. Does nothing below 2 MiB. Touches no page, gives no
/// page to memory outside the range, and never fails: where the kernel refuses, all stays as it is.
void prefer_huge_pages(void* data, std::size_t bytes) noexcept;

}  // namespace hvdtune
