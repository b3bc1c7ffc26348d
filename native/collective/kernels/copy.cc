#include "collective/kernels/copy.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hvdtune {
namespace {

constexpr std::size_t kUsualCache = 32 << 20;

#if defined(__SSE2__)
constexpr std::size_t kLine = 64;
// Below this the fence at the end costs more than it saves.
constexpr std::size_t kLeastStreamed = 4 << 10;
// A shorter copy consists mostly of partial lines at its ends, which are not streamed.
constexpr std::size_t kLeastUnordered = 512;

// Below this, memcpy also uses vectors.
constexpr std::size_t kLeastVectors = 2 << 10;

/// Whether to copy longer data with vectors instead of memcpy. glibc copies it with an instruction
/// (rep movsb) if the processor reports that this is fast. On some AMD processors it is slow for
/// data that comes from memory: an allreduce of 100 MiB between two ranks of a virtual EPYC took
/// 50 ms with it and takes 20 with vectors.
bool prefers_vectors() {
  static const bool prefers = __builtin_cpu_is("amd") != 0;
  return prefers;
}

template <CopyKind kind>
void store(__m128i* to, __m128i value) {
  if constexpr (kind == CopyKind::kStreamed) {
    _mm_stream_si128(to, value);
  } else {
    _mm_store_si128(to, value);
  }
}

/// Whole cache lines; `to` is aligned to one.
template <CopyKind kind>
void copy_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    store<kind>(target, a);
    store<kind>(target + 1, b);
    store<kind>(target + 2, c);
    store<kind>(target + 3, d);
  }
}

template <CopyKind kind>
void copy_vectors(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine;
  copy_lines<kind>(to + head, from + head, lines);
  const std::size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, bytes - done);
}
#endif

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes, CopyKind kind) {
#if defined(__SSE2__)
  if (bytes < kLeastStreamed) kind = CopyKind::kCached;
#endif
  copy_unordered(to, from, bytes, kind);
  order_copies(kind);
}

void copy_unordered(void* to, const void* from, std::size_t bytes, CopyKind kind) {
#if defined(__SSE2__)
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (kind == CopyKind::kStreamed) {
    if (bytes >= kLeastUnordered) return copy_vectors<CopyKind::kStreamed>(target, source, bytes);
  } else if (bytes >= kLeastVectors && prefers_vectors()) {
    return copy_vectors<CopyKind::kCached>(target, source, bytes);
  }
#endif
  (void)kind;
  std::memcpy(to, from, bytes);
}

void order_copies(CopyKind kind) {
#if defined(__SSE2__)
  if (kind == CopyKind::kStreamed) _mm_sfence();
#endif
  (void)kind;
}

void copy_line(std::byte* to, const std::byte* from, CopyKind kind) {
#if defined(__SSE2__)
  if (kind == CopyKind::kStreamed) {
    copy_lines<CopyKind::kStreamed>(to, from, 1);
    return;
  }
#endif
  (void)kind;
  std::memcpy(to, from, 64);
}

std::size_t shared_cache_bytes() {
  static const std::size_t bytes = [] {
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return found > 0 ? static_cast<std::size_t>(found) : kUsualCache;
  }();
  return bytes;
}

}  // namespace hvdtune
