#include "collective/shm/shm_window.h"

#include <algorithm>

#include "base/check.h"

namespace hvdtune {
namespace {

// Chunks start on pages, so that ranks never share a cache line or a prefetch when they write.
constexpr std::size_t kAlignment = 4096;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void ShmWindow::resize(std::size_t ring, std::size_t chunk) {
  ring_ = std::max(aligned(ring), (kWindowChunks + 1) * aligned(chunk));
  HVD_CHECK(ring_ <= kWindowBytes);
  end_ = 0;
}

std::uint64_t ShmWindow::open(std::size_t bytes) {
  const std::size_t length = aligned(bytes);
  if (end_ + length > ring_) end_ = 0;
  places_[next_ % kWindowChunks] = end_;
  end_ += length;
  return next_++;
}

}  // namespace hvdtune
