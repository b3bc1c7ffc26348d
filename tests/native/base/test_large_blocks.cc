#include "base/memory/large_blocks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_large_blocks {
namespace {

constexpr std::size_t kMib = 1 << 20;

}  // namespace

TEST(a_block_is_aligned_writable_and_large_enough) {
  for (const std::size_t bytes : {2 * kMib, 2 * kMib + 1, 5 * kMib + 12345}) {
    const LargeBlock block = allocate_large_block(bytes);
    CHECK(block.data != nullptr);
    CHECK(block.capacity >= bytes && block.capacity < bytes + 64 * 1024);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(block.data) % (2 * kMib), std::uintptr_t{0});
    std::memset(block.data, 1, block.capacity);
    release_large_block(block);
  }
}

TEST(nothing_is_kept_unless_somebody_wants_it) {
  release_large_block(allocate_large_block(4 * kMib));
  CHECK_EQ(kept_large_bytes(), std::size_t{0});
  {
    const KeepLargeBlocks keep;
    const KeepLargeBlocks keep_too;
    release_large_block(allocate_large_block(4 * kMib));
    CHECK_EQ(kept_large_bytes(), 4 * kMib);
  }
  CHECK_EQ(kept_large_bytes(), std::size_t{0});
}

TEST(a_kept_block_serves_the_next_result_of_about_its_size) {
  const KeepLargeBlocks keep;
  const LargeBlock first = allocate_large_block(8 * kMib);
  release_large_block(first);
  const LargeBlock larger = allocate_large_block(9 * kMib);
  CHECK(larger.data != first.data);
  const LargeBlock far_smaller = allocate_large_block(4 * kMib);
  CHECK(far_smaller.data != first.data);
  const LargeBlock smaller = allocate_large_block(7 * kMib);
  CHECK(smaller.data == first.data);
  CHECK_EQ(smaller.capacity, first.capacity);
  for (const LargeBlock& block : {larger, far_smaller, smaller}) release_large_block(block);
}

TEST(what_is_kept_is_bounded) {
  const KeepLargeBlocks keep;
  std::vector<LargeBlock> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(allocate_large_block(2 * kMib));
  for (int i = 0; i < 3; ++i) blocks.push_back(allocate_large_block(50 * kMib));
  blocks.push_back(allocate_large_block(kMostKeptBytes + kMib));
  std::size_t most = 0;
  for (const LargeBlock& block : blocks) {
    release_large_block(block);
    most = std::max(most, kept_large_bytes());
  }
  CHECK(most <= kMostKeptBytes);
  CHECK_EQ(kept_large_bytes() / kMib, std::size_t{100});  // the two newest that fit
}

TEST(a_block_that_is_of_no_use_is_freed) {
  const KeepLargeBlocks keep;
  release_large_block(allocate_large_block(32 * kMib));
  for (int i = 0; i <= kUsefulAllocations; ++i) release_large_block(allocate_large_block(2 * kMib));
  CHECK_EQ(kept_large_bytes(), 2 * kMib);
}

}  // namespace hvdtune::testing::test_large_blocks
