#pragma once

#include <cstddef>

namespace hvdtune {

/// A piece of memory for a large result, aligned to a huge page.
struct LargeBlock {
  void* data = nullptr;
  std::size_t capacity = 0;  ///< at least the size asked for
};

/// Blocks of at least this size are worth keeping: the kernel takes far longer to hand out and
/// clear new pages than a collective takes to fill them.
inline constexpr std::size_t kLeastLargeBlock = 2 << 20;

/// New or used memory; its content is undefined. `data` is null when there is not enough.
LargeBlock allocate_large_block(std::size_t bytes) noexcept;

/// Takes a block back, to keep it for the next result of about its size, or to free it. A process
/// keeps at most kMostKeptBytes: it frees the oldest blocks first, and any block that the last
/// kUsefulAllocations allocations did not use. Any thread can call both functions, also in a child
/// process forked at any moment; neither waits.
void release_large_block(const LargeBlock& block) noexcept;

inline constexpr std::size_t kMostKeptBytes = 128 << 20;
inline constexpr int kUsefulAllocations = 64;

/// Blocks are kept only while an object of this class exists; the last one to be destroyed frees
/// them all.
class KeepLargeBlocks {
 public:
  KeepLargeBlocks();
  ~KeepLargeBlocks();
  KeepLargeBlocks(const KeepLargeBlocks&) = delete;
  KeepLargeBlocks& operator=(const KeepLargeBlocks&) = delete;
};

/// Bytes kept at present.
std::size_t kept_large_bytes();

}  // namespace hvdtune
