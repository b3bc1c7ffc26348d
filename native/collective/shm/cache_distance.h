#pragma once

#include "base/clock.h"
#include "collective/communicator.h"
#include "collective/kernels/copy.h"
#include "transport/arena/arena.h"

namespace hvdtune {

/// Finds the fastest way for a member of a communicator to write data that the others read next.
///
/// If all members' CPUs share a cache, that is an ordinary copy. If they do not (ranks on several
/// sockets, or on several core complexes of one), a store has to take each line away from the
/// readers' cache first, and a copy that bypasses the caches is several times as fast. A machine's
/// own description of its caches is not reliable: a virtual machine's CPUs move around on those of
/// its host, from second to second. So this class measures. From time to time, member 0 writes two
/// pages and lets all others read them; then it writes one page again normally, the other bypassing
/// the caches, and compares the two times.
///
/// One thread at a time, even if several objects of a member use the same cell.
class CacheDistance {
 public:
  /// `cell`: the same on all members; no other communicator uses it at the time.
  CacheDistance(DistanceCell& cell, int members, int index);

  /// Uses the user's choice, or goes back to measuring. Only for this member: the others go on
  /// measuring, with its help.
  void choose(Writing writing) { chosen_ = writing; }

  /// How to write the next chunk, of `bytes` bytes. Each member calls it before every chunk, which
  /// costs a few nanoseconds. The members' answers may differ, as they do not see a change at the
  /// same time. Never blocks.
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
