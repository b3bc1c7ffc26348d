#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/job/process_sets.h"
#include "transport/arena/arena.h"
#include "wire/messages.h"

namespace hvdtune {

/// A part of a rank's stage.
struct StagePart {
  std::size_t begin;
  std::size_t bytes;  ///< whole pages, an even number of them
  /// Begin at the start again whenever nothing is kept: what is read at once is not spread over
  /// more memory than it takes.
  bool restarts = false;
};

/// Where a rank publishes tensors that each member reduces for itself. As with the windows, more
/// than a core's own caches, and all ranks together no more than what is shared; little where ranks
/// take turns on a CPU.
StagePart stage_for_each(const Arena& arena);
/// Where it publishes those whose work is shared, and where their results go (shared_sum.h).
StagePart stage_for_shared();
StagePart stage_for_results();

/// What `rank` has staged of `slot`'s tensor for a round that is complete.
const std::byte* staged_data(Arena& arena, wire::Slot slot, std::uint32_t round, int rank);

/// This rank's part of the stage: where it publishes tensors that go past the coordinator
/// (engine/submission/direct_rounds.h) and are too large for the memory of their slots. A ring of
/// pieces.
///
/// Its own rank alone decides when a piece is written over: once nobody reads it any more. That
/// shows in the slot's word, where the tensor has come round again: a rank that arrives in a round
/// has finished the one before. Otherwise the members' own notes tell (StagedTensor::finished).
///
/// Not thread-safe: the engine locks.
class DirectStage {
 public:
  DirectStage(Arena& arena, const ProcessSets& sets, const StagePart& part);

  /// The longest tensor that finds room.
  [[nodiscard]] std::size_t longest() const { return ring_ / 2; }

  /// Room for `bytes` bytes of the tensor of `slot`, for `round`; its distance from the start of
  /// the rank's part. Nothing when peers may still read what lies there.
  std::optional<std::size_t> take(wire::Slot slot, std::uint32_t round, std::uint32_t process_set,
                                  std::size_t bytes);
  /// Nobody will read what was taken for the round, if anything was: it was given up, or has been
  /// read.
  void give_back(wire::Slot slot, std::uint32_t round);

 private:
  struct Piece {
    std::uint64_t begin;  // counts on; modulo the ring, its place
    wire::Slot slot;
    std::uint32_t round;
    std::uint32_t process_set;
    bool unused;
  };

  [[nodiscard]] bool is_read(const Piece& piece) const;
  [[nodiscard]] Piece& at(std::uint64_t number) { return pieces_[number % pieces_.size()]; }

  Arena& arena_;
  const ProcessSets& sets_;
  std::size_t base_;
  std::size_t ring_;
  bool restarts_;
  std::uint64_t end_ = 0;  // of the last piece
  // Pieces that may be read; the oldest is number first_, the next one to come number next_.
  std::vector<Piece> pieces_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace hvdtune
