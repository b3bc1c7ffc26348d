#include "base/memory/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "check.h"

namespace hvdtune::testing::test_huge_pages {
namespace {

constexpr std::size_t kMapped = 16 << 20;

/// Bytes of this process's mappings that contain `begin` or lie behind it, up to `end`, and ask for
/// huge pages: the flag "hg" in smaps.
std::size_t advised_bytes(std::uintptr_t begin, std::uintptr_t end) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  std::uintptr_t from = 0;
  std::uintptr_t to = 0;
  std::size_t bytes = 0;
  while (std::getline(smaps, line)) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (const auto dash = first.find('-'); dash != std::string::npos && line[0] != 'V') {
      from = std::stoull(first.substr(0, dash), nullptr, 16);
      to = std::stoull(first.substr(dash + 1), nullptr, 16);
    } else if (first == "VmFlags:" && from >= begin && to <= end) {
      if (line.find(" hg") != std::string::npos) bytes += to - from;
    }
  }
  return bytes;
}

}  // namespace

TEST(huge_pages_are_asked_for_whole_pages_around_large_memory_only) {
  void* mapped = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  // A border to the mappings beside it, which the kernel would otherwise join with this one.
  CHECK_EQ(mprotect(mapped, 4096, PROT_NONE), 0);
  auto* data = static_cast<std::byte*>(mapped) + 8192 + 64;
  prefer_huge_pages(data, (2 << 20) - 1);
  CHECK_EQ(advised_bytes(begin, begin + kMapped), std::size_t{0});
  prefer_huge_pages(data, 4 << 20);
  const std::size_t advised = advised_bytes(begin, begin + kMapped);
  // 0: a kernel without huge pages.
  CHECK_MSG(advised == 0 || advised == (4 << 20) + 4096, advised << " bytes");
  munmap(mapped, kMapped);
  prefer_huge_pages(data, 4 << 20);  // nothing there: no harm
}

}  // namespace hvdtune::testing::test_huge_pages
