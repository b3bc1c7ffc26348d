#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/meeting/meet_on_host.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {

// The way in: the engine's constructor calls meet(), once for each init().

/// How the ranks of several hosts find each other.
struct NetworkOptions {
  /// Where rank 0 listens, as the others reach it; see RendezvousOptions.
  std::string host;
  int port = 0;
  /// Different for each job, and for each successive init of one; not empty.
  std::string secret;
  std::string version;
  std::vector<std::string> interfaces;
  Nanos vanish = tcp::kVanishTimeout;
  /// Ranks with the same one share memory.
  std::string host_id;
};

/// Brings the ranks of a job together, wherever they are. Without `network` they are all on this
/// host, and this is meet_on_host().
///
/// With it, all ranks first meet at rank 0's address and connect with each other; they tell each
/// other on which host they are. Then the ranks of each host meet as those of a job on one host do,
/// around the lowest of them; and these leaders connect with each other once more. If all ranks
/// turn out to be on one host, no connection is left.
///
/// Throws what meet_on_host() and form_mesh() throw.
HostSession meet(const MeetingOptions& options, const std::optional<NetworkOptions>& network);

}  // namespace hvdtune
