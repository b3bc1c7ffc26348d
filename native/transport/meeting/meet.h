#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/meeting/meet_on_host.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {

// Entry point: the engine's constructor calls meet(), once for each init().

/// How the ranks of several hosts find each other.
struct NetworkOptions {
  /// Rank 0's address, as the others reach it; see RendezvousOptions.
  std::string host;
  int port = 0;
  /// Different for each job, and for each successive init of a job; not empty.
  std::string secret;
  std::string version;
  std::vector<std::string> interfaces;
  Nanos vanish = tcp::kVanishTimeout;
  /// Ranks with the same host_id share memory.
  std::string host_id;
};

/// Brings the ranks of a job together, wherever they are. Without `network` they are all on this
/// host, and this just calls meet_on_host().
///
/// With `network`, all ranks first meet at rank 0's address, connect with each other, and tell each
/// other which host they are on. Then the ranks of each host meet like those of a job on one host,
/// with the lowest as their leader; then the leaders connect with each other. If all ranks turn out
/// to be on one host, all network connections are closed.
///
/// Throws what meet_on_host() and form_mesh() throw. A rank that fails after the first of these
/// steps tells all others why. Those that wait, on any host, throw Error(kAborted) with its text at
/// once; if the ranks of a host have met already, their arena is aborted with it.
HostSession meet(const MeetingOptions& options, const std::optional<NetworkOptions>& network);

}  // namespace hvdtune
