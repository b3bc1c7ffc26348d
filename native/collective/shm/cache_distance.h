#pragma once

#include "base/clock.h"
#include "collective/communicator.h"
#include "collective/kernels/copy.h"
#include "transport/arena/arena.h"

namespace hvdtune {

/// How a member of a communicator best writes what the others read next.
///
/// Where all members' CPUs share a cache, that is an ordinary copy. Where they do not (ranks on
/// several sockets, or on several core complexes of one), a store has to take each line away from
/// the readers' cache first, and a copy that goes past the caches is several times as fast. What a
/// machine says of its caches does not tell: a virtual machine's CPUs move about on those of its
/// host, from second to second. So it is measured. Now and then, member 0 writes two pages and has
/// all others read them; then it writes one page again, the other past the caches, and compares
/// what the two took.
///
/// One thread at a time, also where several objects of a member serve the same cell.
class CacheDistance {
 public:
  /// `cell`: the same on all members, and on no other communicator at the time.
  CacheDistance(DistanceCell& cell, int members, int index);

  /// Takes the user's word for it, or goes back to measuring. For this member alone: the others go
  /// on measuring, with its help.
  void choose(Writing writing) { chosen_ = writing; }

  /// How to write the next chunk, of `bytes` bytes. Each member asks before every chunk, which
  /// costs a few nanoseconds; the members' answers may differ, as a change comes to each in its own
  /// time. Never blocks.
  CopyKind writing(std::size_t bytes);

 private:
  void acknowledge(std::uint32_t probe);
  [[nodiscard]] bool read_by_all(std::uint32_t probe) const;
  void advance(std::uint32_t probe);
  void measure(std::uint32_t probe);

  DistanceCell& cell_;
  int members_;
  int index_;
  Writing chosen_ = Writing::kMeasured;
  std::size_t unmeasured_ = 0;  // member 0: bytes of chunks since the clock was read
};

}  // namespace hvdtune
