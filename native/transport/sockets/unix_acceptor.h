#pragma once

#include <cstddef>
#include <list>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Accepts connections from processes of this host, as TcpListener does from other hosts, in the
/// order in which they send something. A process that connects and stays silent holds up nobody,
/// and connections of other users are closed at once. A host's leader has one while the ranks of
/// the host meet (meet_on_host()).
///
/// Belongs to one thread; works only while that thread is in next().
class UnixAcceptor {
 public:
  /// `listener` (unix_socket::listen) must outlive it; it may be invalid as long as next() is not
  /// called.
  explicit UnixAcceptor(const Fd& listener) : listener_(listener) {}

  /// The next connection with something to read (or whose other side has gone), or an invalid Fd at
  /// the deadline. Looks at least once. Throws Error(kAborted) if no connection can be accepted.
  Fd next(Nanos deadline);

  /// How many connections may be silent; a further one replaces the oldest.
  static constexpr std::size_t kMostSilent = 256;
  /// For how long a connection may be silent.
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
