#pragma once

#include <cstddef>

namespace hvdtune {

/// A piece of memory for a large result, aligned to a huge page.
struct LargeBlock {
  void* data = nullptr;
  std::size_t capacity = 0;  ///< at least what was asked for
};

/// Memory from here on is worth keeping: the kernel takes far longer to hand out new pages and
/// clear them than a collective to fill them.
inline constexpr std::size_t kLeastLargeBlock = 2 << 20;

/// New or used memory, of any content. `data` is null when there is not enough.
LargeBlock allocate_large_block(std::size_t bytes) noexcept;

/// Takes a block back, to keep it for the next result of about its size, or to free it. At most
/// kMostKeptBytes are kept in a process; the oldest go first, and those that the last
/// kUsefulAllocations allocations had no use for. Both functions can be called by any thread, also
/// in a child process forked at any moment; neither waits.
void release_large_block(const LargeBlock& block) noexcept;

inline constexpr std::size_t kMostKeptBytes = 128 << 20;
inline constexpr int kUsefulAllocations = 64;

/// Blocks are kept only while one of these exists; with the last one all are freed.
class KeepLargeBlocks {
 public:
  KeepLargeBlocks();
  ~KeepLargeBlocks();
  KeepLargeBlocks(const KeepLargeBlocks&) = delete;
  KeepLargeBlocks& operator=(const KeepLargeBlocks&) = delete;
};

/// What is kept just now, in bytes.
std::size_t kept_large_bytes();

}  // namespace hvdtune
