#include "base/memory/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace hvdtune {
namespace {

constexpr std::size_t kHugePage = 2 << 20;  // the smallest of all architectures

}  // namespace

void prefer_huge_pages(void* data, std::size_t bytes) noexcept {
  if (bytes < kHugePage) return;
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  // madvise() needs whole pages, so the range is widened to them. The kernel places a huge page
  // only if all of it is inside the range.
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data) & ~(page - 1);
  const std::uintptr_t end =
      (reinterpret_cast<std::uintptr_t>(data) + bytes + page - 1) & ~(page - 1);
  const int before = errno;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // NOLINT
  errno = before;
}

}  // namespace hvdtune
