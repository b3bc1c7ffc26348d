#include "engine/submission/direct_stage.h"

#include <algorithm>

#include "base/check.h"

namespace hvdtune {
namespace {

// Pieces start on pages, as the window's chunks do.
constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kCrowdedRing = 512 << 10;
constexpr std::size_t kLeastRing = 256 << 10;
// For ranks that each have a core.
constexpr std::size_t kRoamed = 4 << 20;
// Room for two of the longest tensors: of a round, and of the previous one, which may still be
// read.
constexpr std::size_t kSharedRing = 2 << 20;

/// Whether one count has reached another; they may wrap around.
bool reaches(std::uint32_t count, std::uint32_t wanted) {
  return static_cast<std::int32_t>(count - wanted) >= 0;
}

}  // namespace

StagePart stage_for_each(const Arena& arena) {
  if (arena.oversubscribed()) return {0, kCrowdedRing};
  const std::size_t share = kRoamed / static_cast<std::size_t>(arena.ranks());
  // Whole pages, also in the half that the longest tensor takes.
  return {0, std::max(share / (2 * kAlignment) * (2 * kAlignment), kLeastRing)};
}

StagePart stage_for_shared() { return {kRoamed, kSharedRing, true}; }

StagePart stage_for_results() { return {kRoamed + kSharedRing, kSharedRing}; }

const std::byte* staged_data(Arena& arena, wire::Slot slot, std::uint32_t round, int rank) {
  const StagedTensor& staged = arena.staged(slot, rank);
  return arena.stage(rank) + staged.place[round % 2].load(std::memory_order_relaxed);
}

DirectStage::DirectStage(Arena& arena, const ProcessSets& sets, const StagePart& part)
    : arena_(arena),
      sets_(sets),
      base_(part.begin),
      ring_(part.bytes),
      restarts_(part.restarts),
      pieces_(part.bytes / kAlignment + 1) {
  HVD_CHECK(ring_ % (2 * kAlignment) == 0 && base_ + ring_ <= kStageBytes);
}

std::optional<std::size_t> DirectStage::take(wire::Slot slot, std::uint32_t round,
                                             std::uint32_t process_set, std::size_t bytes) {
  const std::size_t length = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  HVD_CHECK(length <= ring_);
  std::uint64_t begin = end_;
  if (restarts_) {
    while (first_ != next_ && is_read(at(first_))) ++first_;
    if (first_ == next_) begin = (end_ + ring_ - 1) / ring_ * ring_;
  }
  if (begin % ring_ + length > ring_) begin += ring_ - begin % ring_;  // contiguous
  while (first_ != next_ && begin + length > at(first_).begin + ring_) {
    if (!is_read(at(first_))) return std::nullopt;
    ++first_;
  }
  at(next_++) = {begin, slot, round, process_set, false};
  end_ = begin + length;
  return base_ + begin % ring_;
}

void DirectStage::give_back(wire::Slot slot, std::uint32_t round) {
  for (std::uint64_t number = next_; number != first_;) {
    Piece& piece = at(--number);
    if (piece.slot != slot || piece.round != round) continue;
    piece.unused = true;
    return;
  }
}

/// Whether all members of its process set have read it.
bool DirectStage::is_read(const Piece& piece) const {
  if (piece.unused) return true;
  // The next round has ended: all have arrived in it, and so finished this one.
  if (reaches(arena_.slot_round(piece.slot).round(), piece.round + 2)) return true;
  // If the set was removed, members may still read; wait for the slot's word.
  if (!sets_.exists(piece.process_set)) return false;
  const std::vector<int>& ranks = sets_.ranks(piece.process_set);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    const std::atomic<std::uint32_t>& finished = arena_.staged(piece.slot, rank).finished;
    return reaches(finished.load(std::memory_order_acquire), piece.round + 1);
  });
}

}  // namespace hvdtune
