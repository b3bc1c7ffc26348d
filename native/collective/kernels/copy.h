#pragma once

#include <cstddef>

namespace hvdtune {

enum class CopyKind {
  kCached,  ///< an ordinary copy: the target is in cache afterwards
  /// Past the caches, where the processor can: the target's old content is not read first, nor is
  /// it fetched from the cache of a CPU that has read it, and what the own caches hold stays there.
  /// For results larger than the cache, and for readers that share no cache with this CPU.
  kStreamed,
};

/// Copies between memory that does not overlap. When it returns, the copy is ordered like any other
/// write of this thread.
void copy_bytes(void* to, const void* from, std::size_t bytes, CopyKind kind);

/// The same, but what is streamed is ordered by nothing before this thread's next order_copies():
/// for many copies in a row, as that waits until they have reached memory.
void copy_unordered(void* to, const void* from, std::size_t bytes, CopyKind kind);
void order_copies(CopyKind kind);

/// Copies 64 bytes to an aligned place. Streamed as by copy_unordered.
void copy_line(std::byte* to, const std::byte* from, CopyKind kind);

/// Bytes of the largest cache that several CPUs share; a guess where the system does not say.
std::size_t shared_cache_bytes();

}  // namespace hvdtune
