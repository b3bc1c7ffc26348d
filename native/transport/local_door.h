#pragma once

#include <cstddef>
#include <list>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Who comes to a local meeting point, in the order in which they say something: who connects and
/// stays silent holds up nobody, and other users are not kept at all.
///
/// Belongs to one thread; works while that is in next().
class LocalDoor {
 public:
  /// `listener` (unix_socket::listen) must outlive it; it may be invalid as long as next() is not
  /// called.
  explicit LocalDoor(const Fd& listener) : listener_(listener) {}

  /// The next connection with something to read (or whose other side has gone), or an invalid Fd
  /// at the deadline. Looks at least once. Throws Error(kAborted) when nobody can be accepted.
  Fd next(Nanos deadline);

  /// How many may be silent; the oldest gives way to a new one.
  static constexpr std::size_t kMostSilent = 256;
  /// For how long one may be silent.
  static constexpr Nanos kSilence = 10 * kSecond;

 private:
  struct Silent {
    Fd socket;
    Nanos deadline;
  };
  void let_in();

  const Fd& listener_;
  std::list<Silent> silent_;  // oldest first
};

}  // namespace hvdtune
