#include "collective/cache_distance.h"

#include <array>

namespace hvdtune {
namespace {

constexpr std::size_t kLine = 64;
constexpr Nanos kInterval = 20 * kMillisecond;
// The clock costs as much as moving a few KiB; small operations do not look at it every time.
constexpr std::size_t kBytesPerLook = 64 << 10;
// Shared cache: 0.7 times as long as past the caches (EPYC, Zen 4); two caches: 2.3 times.
constexpr double kFar = 1.4;

/// What it takes to fill a page, in nanoseconds.
Nanos fill(std::byte* page, std::uint32_t number, CopyKind kind) {
  std::array<std::byte, kLine> line;
  line.fill(static_cast<std::byte>(number));
  const Nanos began = monotonic_now();
  for (std::size_t at = 0; at < DistanceCell::kProbeBytes; at += kLine) {
    copy_line(page + at, line.data(), kind);
  }
  // Not before the stores have reached the caches or memory.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return monotonic_now() - began;
}

}  // namespace

CacheDistance::CacheDistance(DistanceCell& cell, int members, int index)
    : cell_(cell), members_(members), index_(index) {}

CopyKind CacheDistance::writing(std::size_t bytes) {
  if (chosen_ != Writing::kMeasured) {
    return chosen_ == Writing::kStreamed ? CopyKind::kStreamed : CopyKind::kCached;
  }
  const std::uint32_t probe = cell_.probe.load(std::memory_order_acquire);
  unmeasured_ += bytes;
  if (index_ != 0) {
    acknowledge(probe);
  } else if (unmeasured_ >= kBytesPerLook) {
    unmeasured_ = 0;
    const Nanos now = monotonic_now();
    if (now - measured_ >= kInterval && read_by_all(probe)) {
      measure();
      measured_ = now;
    }
  }
  const bool far = cell_.far.load(std::memory_order_relaxed) != 0;
  return far ? CopyKind::kStreamed : CopyKind::kCached;
}

/// Reads the pages, so that their lines are in this CPU's cache.
void CacheDistance::acknowledge(std::uint32_t probe) {
  std::atomic<std::uint32_t>& mine = cell_.readers[index_].probe;
  if (mine.load(std::memory_order_relaxed) == probe) return;
  for (std::size_t at = 0; at < DistanceCell::kProbeBytes; at += kLine) {
    static_cast<void>(*static_cast<volatile const std::byte*>(cell_.cached + at));
    static_cast<void>(*static_cast<volatile const std::byte*>(cell_.streamed + at));
  }
  mine.store(probe, std::memory_order_release);
}

bool CacheDistance::read_by_all(std::uint32_t probe) const {
  for (int member = 1; member < members_; ++member) {
    if (cell_.readers[member].probe.load(std::memory_order_acquire) != probe) return false;
  }
  return true;
}

void CacheDistance::measure() {
  const std::uint32_t last = cell_.probe.load(std::memory_order_relaxed);
  const Nanos cached = fill(cell_.cached, last + 1, CopyKind::kCached);
  const Nanos streamed = fill(cell_.streamed, last + 1, CopyKind::kStreamed);
  const bool far = static_cast<double>(cached) > kFar * static_cast<double>(streamed);
  // Before the first probe nobody has read anything. And one measurement that was interrupted
  // changes nothing.
  if (last != 0 && far == seemed_far_) cell_.far.store(far ? 1 : 0, std::memory_order_relaxed);
  seemed_far_ = far;
  cell_.probe.store(last + 1, std::memory_order_release);
}

}  // namespace hvdtune
