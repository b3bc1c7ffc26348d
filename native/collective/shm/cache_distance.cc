#include "collective/shm/cache_distance.h"

#include <array>

namespace hvdtune {
namespace {

constexpr std::size_t kLine = 64;
constexpr Nanos kInterval = 20 * kMillisecond;
// Reading the clock costs as much as moving a few KiB, so small operations do not read it every
// time.
constexpr std::size_t kBytesPerLook = 64 << 10;
// Writing through a shared cache takes 0.4 to 1.7 times as long as bypassing the caches. If the
// CPUs share no cache, it takes 4 to 6.5 times as long on one EPYC (Zen 4), 2.0 to 3.5 times on a
// newer one.
constexpr double kFar = 1.85;

/// Fills a page; returns the time it takes, in nanoseconds.
Nanos fill(std::byte* page, std::uint32_t number, CopyKind kind) {
  std::array<std::byte, kLine> line;
  line.fill(static_cast<std::byte>(number));
  const Nanos began = monotonic_now();
  for (std::size_t at = 0; at < DistanceCell::kProbeBytes; at += kLine) {
    copy_line(page + at, line.data(), kind);
  }
  // Read the clock only after the stores have reached the caches or memory.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return monotonic_now() - began;
}

}  // namespace

CacheDistance::CacheDistance(DistanceCell& cell, int members, int index)
    : cell_(cell), members_(members), index_(index) {}

CopyKind CacheDistance::writing(std::size_t bytes) {
  const std::uint32_t probe = cell_.probe.load(std::memory_order_acquire);
  if (index_ != 0) {
    acknowledge(probe);
  } else {
    unmeasured_ += bytes;
    if (cell_.probing || unmeasured_ >= kBytesPerLook) advance(probe);
  }
  if (chosen_ != Writing::kMeasured) {
    return chosen_ == Writing::kStreamed ? CopyKind::kStreamed : CopyKind::kCached;
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

void CacheDistance::advance(std::uint32_t probe) {
  unmeasured_ = 0;
  if (!read_by_all(probe)) return;
  if (cell_.probing) {
    measure(probe);
    cell_.probing = false;
    cell_.measured = monotonic_now();
  } else if (monotonic_now() - cell_.measured >= kInterval) {
    // Write the pages now, so that the others read them into their caches: a page written long ago
    // may be in none.
    fill(cell_.cached, probe, CopyKind::kCached);
    fill(cell_.streamed, probe, CopyKind::kCached);
    cell_.probe.store(probe + 1, std::memory_order_release);
    cell_.probing = true;
  }
}

void CacheDistance::measure(std::uint32_t probe) {
  const Nanos cached = fill(cell_.cached, probe, CopyKind::kCached);
  const Nanos streamed = fill(cell_.streamed, probe, CopyKind::kStreamed);
  const bool far = static_cast<double>(cached) > kFar * static_cast<double>(streamed);
  // A single outlier (an interrupted measurement) changes nothing.
  if (far == cell_.seemed_far) cell_.far.store(far ? 1 : 0, std::memory_order_relaxed);
  cell_.seemed_far = far;
}

}  // namespace hvdtune
