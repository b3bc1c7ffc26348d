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
  /// Whether to begin at the start again whenever nothing is kept, so that data that is read at
  /// once uses little memory.
  bool restarts = false;
};

/// The part where a rank publishes tensors that each member reduces for itself. As with the
/// windows, it is larger than a core's own caches, and those of all ranks together fit the shared
/// cache; it is small if ranks take turns on a CPU.
StagePart stage_for_each(const Arena& arena);
/// The part for tensors whose work is shared, and for their results (shared_sum.h).
StagePart stage_for_shared();
StagePart stage_for_results();

/// The data that `rank` has staged of `slot`'s tensor for a complete round.
const std::byte* staged_data(Arena& arena, wire::Slot slot, std::uint32_t round, int rank);

/// This rank's part of the stage, a ring of pieces. The rank publishes tensors there that bypass
/// the coordinator (engine/submission/direct_rounds.h) and are too large for the memory of their
/// slots.
///
/// Only this rank decides when to overwrite a piece: once nobody reads it any more. If the tensor
/// is already in a later round, the slot's word shows this, since a rank that arrives in a round
/// has finished the previous one. Otherwise the members' own notes show it
/// (StagedTensor::finished).
///
/// Not thread-safe: the engine locks.
class DirectStage {
 public:
  DirectStage(Arena& arena, const ProcessSets& sets, const StagePart& part);

  /// The longest tensor that fits, in bytes.
  [[nodiscard]] std::size_t longest() const { return ring_ / 2; }

  /// Takes room for `bytes` bytes of the tensor of `slot`, for `round`; returns its distance from
  /// the start of the rank's part. Nothing if peers may still read the data there.
  std::optional<std::size_t> take(wire::Slot slot, std::uint32_t round, std::uint32_t process_set,
                                  std::size_t bytes);
  /// Gives back the room taken for the round, if any: the round was given up, or all have read it.
  void give_back(wire::Slot slot, std::uint32_t round);

 private:
  struct Piece {
    std::uint64_t begin;  // keeps growing; the position is this modulo the ring
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
  // Pieces that may be read; the oldest is number first_, the next new one number next_.
  std::vector<Piece> pieces_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace hvdtune
