#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/sockets/mesh.h"
#include "transport/sockets/tcp_address.h"
#include "wire/meeting.h"

namespace hvdtune {

// How the ranks of a rendezvous connect; only rendezvous.h's form_mesh() calls this. First each
// connects to rank 0 with reach_patiently(); then, after rank 0 has sent all ranks' addresses, each
// connects to all others with connect_all().

class TcpListener;
struct RendezvousOptions;

/// A rank's answer to another one that has connected to it.
inline constexpr const char* kWelcome = "welcome";

/// Sets the socket's options for a connection of `lane`.
void configure_lane(const Fd& socket, wire::Lane lane, Nanos vanish);

/// Result of the attempts to reach another rank.
struct Attempt {
  Fd socket;  ///< if invalid, `why` tells why
  std::string why;
  bool refused = false;  ///< one of the two processes does not trust the other
  bool closed = false;   ///< the other side hung up, perhaps because of too many connections
  bool silent = false;   ///< it has not answered in time, perhaps because it is stopped
};

/// Connects to a rank, proves that this process belongs to the job, and introduces it. Retries:
/// rank 0 may not listen yet (unless the rank is `known` to listen), many connections from
/// strangers may have taken this process's place in the listener's queue, and a process that is
/// stopped, or gets no CPU, answers only when it goes on.
///
/// A `known` rank must answer with a welcome, which confirms that it is the intended rank: several
/// hosts can have the same address on different networks, and a host may reach itself under an
/// address that another host has as well. Throws what options.on_wait throws.
Attempt reach_patiently(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
                        const wire::Introduction& introduction, bool known, Nanos deadline);

/// The second half of a rendezvous: each rank of the `directory` connects to those below it.
/// `notices`: by rank, the existing connections with rank 0; `listener`: accepts the connections of
/// higher ranks, null if there are none.
///
/// Returns on any rank only after all ranks are connected with all others: a rank may then leave at
/// once without disturbing slower ones. Throws Error(kAborted) if a rank cannot be reached, has
/// died or has failed, and Error(kTimeout) naming a rank that did not connect in time; the other
/// ranks are told.
std::unique_ptr<Mesh> connect_all(const RendezvousOptions& options,
                                  const wire::Directory& directory, std::vector<Fd> notices,
                                  TcpListener* listener);

}  // namespace hvdtune
