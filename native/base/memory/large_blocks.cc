#include "base/memory/large_blocks.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/memory/huge_pages.h"

namespace hvdtune {
namespace {

constexpr std::size_t kAlignment = 2 << 20;
constexpr std::size_t kPage = 64 << 10;  // the largest page of the architectures
constexpr std::size_t kMostBlocks = 32;

void free_pages(const LargeBlock& block) noexcept { munmap(block.data, block.capacity); }

LargeBlock new_pages(std::size_t bytes) noexcept {
  if (bytes > SIZE_MAX / 2) return {};
  const std::size_t capacity = (bytes + kPage - 1) / kPage * kPage;
  void* mapped = mmap(nullptr, capacity + kAlignment, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return {};
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kAlignment;
  if (before > 0) munmap(begin, before);
  if (before < kAlignment) munmap(begin + before + capacity, kAlignment - before);
  prefer_huge_pages(begin + before, capacity);
  return {begin + before, capacity};
}

/// The blocks of this process that wait for their next use, oldest first.
struct Kept {
  struct Entry {
    LargeBlock block;
    std::uint64_t since;  // `allocations` when it was released
  };

  std::mutex mutex;
  std::array<Entry, kMostBlocks> entries;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::uint64_t allocations = 0;
  int users = 0;

  LargeBlock take(std::size_t at) {
    const LargeBlock block = entries[at].block;
    std::move(entries.begin() + static_cast<std::ptrdiff_t>(at) + 1,
              entries.begin() + static_cast<std::ptrdiff_t>(count),
              entries.begin() + static_cast<std::ptrdiff_t>(at));
    --count;
    bytes -= block.capacity;
    return block;
  }

  void free_oldest_while(auto&& unwanted) {
    while (count > 0 && unwanted()) free_pages(take(0));
  }
};

/// Never destroyed: results may outlive static objects. A forked child begins with an empty pool: a
/// thread that does not exist in the child may hold the lock, and the kept blocks are the parent's.
std::atomic<Kept*>& pool_of_process() {
  static std::atomic<Kept*> instance = [] {
    pthread_atfork(nullptr, nullptr, [] { pool_of_process().store(new Kept); });
    return new Kept;
  }();
  return instance;
}

Kept& kept() { return *pool_of_process().load(); }

}  // namespace

LargeBlock allocate_large_block(std::size_t bytes) noexcept {
  Kept& pool = kept();
  if (const std::unique_lock lock(pool.mutex, std::try_to_lock); lock) {
    ++pool.allocations;
    pool.free_oldest_while(
        [&] { return pool.allocations - pool.entries[0].since > kUsefulAllocations; });
    std::size_t best = pool.count;
    for (std::size_t i = 0; i < pool.count; ++i) {
      const std::size_t capacity = pool.entries[i].block.capacity;
      if (capacity < bytes || capacity - bytes > bytes / 4) continue;
      if (best == pool.count || capacity <= pool.entries[best].block.capacity) best = i;
    }
    if (best < pool.count) return pool.take(best);
  }
  return new_pages(bytes);
}

void release_large_block(const LargeBlock& block) noexcept {
  if (block.data == nullptr) return;
  Kept& pool = kept();
  if (const std::unique_lock lock(pool.mutex, std::try_to_lock);
      lock && pool.users > 0 && block.capacity <= kMostKeptBytes) {
    pool.free_oldest_while(
        [&] { return pool.count == kMostBlocks || pool.bytes + block.capacity > kMostKeptBytes; });
    pool.entries[pool.count++] = {block, pool.allocations};
    pool.bytes += block.capacity;
    return;
  }
  free_pages(block);
}

KeepLargeBlocks::KeepLargeBlocks() {
  const std::lock_guard lock(kept().mutex);
  ++kept().users;
}

KeepLargeBlocks::~KeepLargeBlocks() {
  const std::lock_guard lock(kept().mutex);
  if (kept().users > 0 && --kept().users == 0) kept().free_oldest_while([] { return true; });
}

std::size_t kept_large_bytes() {
  const std::lock_guard lock(kept().mutex);
  return kept().bytes;
}

}  // namespace hvdtune
