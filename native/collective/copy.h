#pragma once

#include <cstddef>

namespace hvdtune {

enum class CopyKind {
  kCached,  ///< an ordinary copy: the target is in cache afterwards
  /// Past the caches, where the processor can: for results larger than the cache. The target's old
  /// content is not read first, and what the caches hold (the windows) stays there.
  kStreamed,
};

/// Copies between memory that does not overlap. When it returns, the copy is ordered like any other
/// write of this thread.
void copy_bytes(void* to, const void* from, std::size_t bytes, CopyKind kind);

/// Bytes of the largest cache that several CPUs share; a guess where the system does not say.
std::size_t shared_cache_bytes();

}  // namespace hvdtune
