#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/arena/arena.h"

namespace hvdtune {

/// Where the chunks of messages lie in the window of every member: one after the other, round and
/// round a ring whose size is a matter of caches. All members open the same chunks in the same
/// order, hence at the same places.
///
/// Four chunks are alive at a time (shm_communicator.h says why); a fifth may need the rest of the
/// ring's end, hence the room for five.
///
/// How large the ring is: what a rank writes into it, others have read the time before. While such
/// a line is in a reader's cache, a store has to take it away from there first, which costs six
/// times what it costs otherwise (32 KiB on one EPYC: 3.6 us, not 0.6). Small messages therefore
/// move on through a ring larger than a core's L2 cache, so that the lines have left it for the
/// shared L3 when their turn comes again. All rings together must find room there.
class ShmWindow {
 public:
  /// `chunk`: bytes of the largest chunk to be opened. Not while a peer may still read a chunk.
  void resize(std::size_t ring, std::size_t chunk);
  [[nodiscard]] std::size_t ring() const { return ring_; }

  /// Starts the next chunk, of `bytes` bytes; the one before the last three is lost. Returns its
  /// number, which counts on over messages.
  std::uint64_t open(std::size_t bytes);
  /// Whether a chunk has ever been opened: the same on all members.
  [[nodiscard]] bool used() const { return next_ != 0; }
  /// Of one of the last four chunks, its distance from the window's start in bytes.
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
