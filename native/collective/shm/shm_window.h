#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/arena/arena.h"

namespace hvdtune {

/// Positions of the chunks of messages in every member's window: one after the other in a ring,
/// whose size depends on the caches. All members open the same chunks in the same order, hence at
/// the same positions.
///
/// Four chunks are in use at a time (shm_communicator.h says why). A chunk that does not fit before
/// the ring's end starts at its beginning and wastes the rest, hence the room for five.
///
/// Size of the ring: a rank writes lines that others read in the previous pass. While such a line
/// is in a reader's cache, a store has to take it away from there first, which costs six times as
/// much (32 KiB on one EPYC: 3.6 us, not 0.6). Small messages therefore use successive positions of
/// a ring larger than a core's L2 cache, so that lines have moved from L2 to the shared L3 before
/// they are written again. All rings together must fit there.
class ShmWindow {
 public:
  /// `chunk`: bytes of the largest chunk that will be opened. Do not call it while a peer may still
  /// read a chunk.
  void resize(std::size_t ring, std::size_t chunk);
  [[nodiscard]] std::size_t ring() const { return ring_; }

  /// Starts the next chunk, of `bytes` bytes; only it and the last three remain valid. Returns its
  /// number, which counts on across messages.
  std::uint64_t open(std::size_t bytes);
  /// Whether a chunk has ever been opened: the same on all members.
  [[nodiscard]] bool used() const { return next_ != 0; }
  /// Distance of one of the last four chunks from the window's start, in bytes.
  [[nodiscard]] std::size_t place(std::uint64_t chunk) const {
    return places_[chunk % kWindowChunks];
  }

 private:
  std::size_t ring_ = 0;
  std::size_t end_ = 0;  // of the last chunk
  std::uint64_t next_ = 0;
  std::array<std::size_t, kWindowChunks> places_{};
};

}  // namespace hvdtune
