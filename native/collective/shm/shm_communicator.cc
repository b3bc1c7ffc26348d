#include "collective/shm/shm_communicator.h"

#include <algorithm>
#include <utility>

#include "collective/activities.h"
#include "collective/communicator_factory.h"

namespace hvdtune {
namespace {

/// Sizes, in bytes, that decide the algorithm and its pieces. docs/performance.md has the
/// measurements behind them.
struct ShmTuning {
  std::size_t one_shot_limit;
  std::size_t chunk;           ///< of an allreduce
  std::size_t exchange_chunk;  ///< of the other operations, which pass a chunk through one exchange
  std::size_t ring;  ///< the used part of a member's window, if that is more than a few chunks
};

ShmTuning standard_tuning(std::size_t members, bool crowded) {
  constexpr std::size_t kAllRings = 4 << 20;
  if (!crowded) return {8 << 10, 256 << 10, 512 << 10, kAllRings / members};
  // Members take turns on a CPU and find the previous one's data in its cache.
  return {members <= 4 ? std::size_t{16 << 10} : std::size_t{8 << 10}, 128 << 10, 256 << 10, 0};
}

}  // namespace

ShmCommunicator::ShmCommunicator(std::shared_ptr<Arena> arena, std::vector<int> members, int index,
                                 int cell, Patience patience, std::shared_ptr<HelperPool> helpers)
    : arena_(std::move(arena)),
      members_(std::move(members)),
      index_(index),
      barrier_(*arena_, arena_->barrier(cell), static_cast<int>(members_.size()), index, patience),
      distance_(arena_->distance(cell), static_cast<int>(members_.size()), index),
      helpers_(or_none(std::move(helpers))),
      crowded_(arena_->oversubscribed()) {
  tune({});
}

void ShmCommunicator::tune(const Tuning& tuning) {
  distance_.choose(tuning.writing);
  const ShmTuning standard = standard_tuning(members_.size(), crowded_);
  const auto chosen = [](std::int64_t wanted, std::size_t otherwise) {
    return wanted > 0 ? static_cast<std::size_t>(wanted) : otherwise;
  };
  // A chunk is cut into one part per member, in whole cache lines.
  const std::size_t unit = kCacheLine * members_.size();
  const std::size_t wanted = chosen(tuning.chunk_size, standard.chunk);
  const std::size_t chunk = std::clamp(wanted, unit, std::size_t{kMaxChunk}) / unit * unit;
  const std::size_t exchange_wanted = chosen(tuning.chunk_size, standard.exchange_chunk);
  const std::size_t exchange_chunk =
      std::clamp(exchange_wanted, unit, kMaxExchangeChunk) / unit * unit;
  if (chunk != chunk_bytes_ || exchange_chunk != exchange_chunk_) {
    // A peer may still read chunks that the new layout overwrites.
    if (window_.used() || exchange_window_.used()) barrier();
    window_.resize(standard.ring, chunk);
    exchange_window_.resize(0, exchange_chunk + kMaxExchangeHeader);
    chunk_bytes_ = chunk;
    exchange_chunk_ = exchange_chunk;
  }
  // A one-shot message is also one chunk.
  one_shot_limit_ = std::min(chosen(tuning.one_shot_limit, standard.one_shot_limit), chunk_bytes_);
}

std::byte* ShmCommunicator::window(std::size_t member, std::uint64_t chunk) const {
  return arena_->window(members_[member]) + window_.place(chunk);
}

std::byte* ShmCommunicator::exchange_window(std::size_t member, std::uint64_t chunk) const {
  return arena_->window(members_[member]) + kRingBytes + exchange_window_.place(chunk);
}

void ShmCommunicator::barrier() {
  if (others() == 0) return;
  barrier_.arrive();
  barrier_.wait();
}

void ShmCommunicator::report_absence(Nanos patience, AbsenceReport report) {
  barrier_.report_absence(
      patience, [this, report = std::move(report)](const std::vector<int>& missing, Nanos waited) {
        std::vector<int> ranks;
        for (const int member : missing)
          ranks.push_back(members_[static_cast<std::size_t>(member)]);
        report(ranks, waited);
      });
}

void ShmCommunicator::end_operation() {
  if (window_shared_) barrier();
}

/// Its last operation may have ended without a barrier: peers may still read this rank's window.
void ShmCommunicator::share_buffers() {
  barrier();
  window_shared_ = true;
}

const char* ShmCommunicator::activity(OpKind kind) const {
  static constexpr Activities kActivities("SHM");
  return kActivities.of(kind);
}

std::unique_ptr<Communicator> make_shm_communicator(const CommunicatorSpec& spec) {
  auto communicator = std::make_unique<ShmCommunicator>(
      spec.session.arena, spec.members, spec.index, spec.number, spec.patience, spec.helpers);
  communicator->set_window_shared(!spec.only_one);
  return communicator;
}

}  // namespace hvdtune
