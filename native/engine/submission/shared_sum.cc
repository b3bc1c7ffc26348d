#include "engine/submission/shared_sum.h"

#include <sched.h>

#include <algorithm>
#include <array>

#include "collective/kernels/reduction.h"
#include "engine/submission/direct_stage.h"

namespace hvdtune {
namespace {

// Enough pieces for all CPUs; few enough to avoid contention for their counter.
constexpr std::size_t kPiece = 16 << 10;

}  // namespace

SharedSum::SharedSum(Arena& arena, const std::vector<int>& ranks, const Round& round,
                     Nanos patience)
    : arena_(arena), ranks_(ranks), round_(round), patience_(patience) {}

std::uint32_t SharedSum::pieces() const {
  return static_cast<std::uint32_t>((round_.bytes + kPiece - 1) / kPiece);
}

bool SharedSum::fetch(void* out, CopyKind writing) {
  const int first = ranks_.front();
  const StagedTensor& staged = arena_.staged(round_.slot, first);
  const std::uint64_t place = staged.result[round_.number % 2].load(std::memory_order_relaxed);
  if (place == StagedTensor::kReducedByEach) return false;
  std::byte* result = arena_.stage(first) + place;
  SharedWork& work = arena_.shared_work(round_.slot);
  while (const auto piece = work.claim(round_.number, pieces())) {
    const std::size_t begin = *piece * kPiece;
    sum_piece(result + begin, begin, std::min(kPiece, round_.bytes - begin), writing);
    work.done(round_.number);
  }
  if (!wait_for_others(work)) return false;
  copy_bytes(out, result, round_.bytes, CopyKind::kCached);
  return true;
}

/// Returns whether the work was completed.
bool SharedSum::wait_for_others(SharedWork& work) const {
  using State = SharedWork::State;
  State state = work.state(round_.number, pieces());
  for (const Nanos began = monotonic_now(); state == State::kOpen;) {
    if (monotonic_now() - began > patience_) {
      state = work.give_up(round_.number, pieces());
      break;
    }
    sched_yield();
    state = work.state(round_.number, pieces());
  }
  return state == State::kComplete;
}

/// Computes [begin, begin + bytes) of the sum.
void SharedSum::sum_piece(std::byte* result, std::size_t begin, std::size_t bytes,
                          CopyKind writing) const {
  std::array<const std::byte*, kMaxRanksPerHost> sources;
  const std::size_t members = ranks_.size();
  for (std::size_t member = 0; member < members; ++member) {
    sources[member] = staged_data(arena_, round_.slot, round_.number, ranks_[member]) + begin;
  }
  if (writing == CopyKind::kCached) {
    reduce_block(sources.data(), members, result, bytes, round_.dtype, round_.op, round_.post);
    return;
  }
  alignas(kCacheLine) std::array<std::byte, kTile> tile;
  for (std::size_t at = 0; at < bytes; at += kTile) {
    const std::size_t part = std::min(kTile, bytes - at);
    reduce_block(sources.data(), members, tile.data(), part, round_.dtype, round_.op, round_.post);
    copy_unordered(result + at, tile.data(), part, CopyKind::kStreamed);
    for (std::size_t member = 0; member < members; ++member) sources[member] += part;
  }
  order_copies(CopyKind::kStreamed);
}

}  // namespace hvdtune
