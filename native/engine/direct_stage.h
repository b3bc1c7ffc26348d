#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/process_sets.h"
#include "transport/arena.h"
#include "wire/messages.h"

namespace hvdtune {

/// How much of its stage a rank goes round in, in bytes. As with the windows, more than a core's
/// own caches, and all ranks together no more than what is shared; little where ranks take turns on
/// a CPU.
std::size_t stage_ring(const Arena& arena);

/// This rank's part of the stage: where it publishes tensors that go past the coordinator
/// (engine/direct.cc) and are too large for the memory of their slots. A ring of pieces.
///
/// Its own rank alone decides when a piece is written over: once nobody reads it any more. That
/// shows in the slot's word, where the tensor has come round again: a rank that arrives in a round
/// has finished the one before. Otherwise the members' own notes tell (StagedTensor::finished).
///
/// Not thread-safe: the engine locks.
class DirectStage {
 public:
  /// `ring`: of stage_ring().
  DirectStage(Arena& arena, const ProcessSets& sets, std::size_t ring);

  /// The longest tensor that finds room.
  [[nodiscard]] std::size_t longest() const { return ring_ / 2; }

  /// Room for `bytes` bytes of the tensor of `slot`, for `round`; its distance from the start of
  /// the rank's part. Nothing when peers may still read what lies there.
  std::optional<std::size_t> take(wire::Slot slot, std::uint32_t round, std::uint32_t process_set,
                                  std::size_t bytes);
  /// The round was given up: nobody will read what it has taken.
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
  std::size_t ring_;
  std::uint64_t end_ = 0;  // of the last piece
  // Pieces that may be read; the oldest is number first_, the next one to come number next_.
  std::vector<Piece> pieces_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace hvdtune
