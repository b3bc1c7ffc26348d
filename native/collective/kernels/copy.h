#pragma once

#include <cstddef>

namespace hvdtune {

enum class CopyKind {
  kCached,  ///< an ordinary copy: the target is in cache afterwards
  /// Bypasses the caches, if the processor can: the target's old content is not read first, nor
  /// fetched from the cache of a CPU that has read it, and this CPU's caches keep their content.
  /// For results larger than the cache, and for readers that share no cache with this CPU.
  kStreamed,
};

/// Copies between memory that does not overlap. When it returns, the copy is ordered like any other
/// write of this thread.
void copy_bytes(void* to, const void* from, std::size_t bytes, CopyKind kind);

/// The same, but streamed data is unordered until this thread's next order_copies(). For many
/// copies in a row, since order_copies() waits until they have reached memory.
void copy_unordered(void* to, const void* from, std::size_t bytes, CopyKind kind);
void order_copies(CopyKind kind);

/// Copies 64 bytes to an aligned address. Streams like copy_unordered().
void copy_line(std::byte* to, const std::byte* from, CopyKind kind);

/// Bytes of the largest cache that several CPUs share; a guess if the system does not report it.
std::size_t shared_cache_bytes();

}  // namespace hvdtune
