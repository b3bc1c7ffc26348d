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
// Below this a copy is mostly the parts of lines at its ends, which are not streamed.
constexpr std::size_t kLeastUnordered = 512;

/// Whole cache lines; `to` is aligned to one.
void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

void copy_streamed(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine;
  stream_lines(to + head, from + head, lines);
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
  if (kind == CopyKind::kStreamed && bytes >= kLeastUnordered) {
    copy_streamed(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    return;
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
    stream_lines(to, from, 1);
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
