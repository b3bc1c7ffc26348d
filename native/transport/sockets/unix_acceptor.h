#pragma once

#include <cstddef>
#include <list>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Accepts connections of processes of this host, as TcpListener does those of others, in the order
/// in which they say something: who connects and stays silent holds up nobody, and other users are
/// not kept at all. Rank 0 has one while the ranks of its host meet (meet_on_host()).
///
/// Belongs to one thread; works while that is in next().
class UnixAcceptor {
 public:
  /// `listener` (unix_socket::listen) must outlive it; it may be invalid as long as next() is not
  /// called.
  explicit UnixAcceptor(const Fd& listener) : listener_(listener) {}

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
