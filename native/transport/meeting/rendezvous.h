#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/sockets/mesh.h"
#include "transport/sockets/tcp_listener.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {

// How ranks meet over a network, at rank 0's address. meet() calls form_mesh() in a job that may be
// on several hosts: first for all ranks, and at the end once more for the hosts' leaders.

/// Settings of a rank for a meeting over the network.
struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  /// Rank 0's address, as the others reach it. Better a numeric address than a name: a name may
  /// resolve to other addresses on its own host than elsewhere.
  std::string host = "127.0.0.1";
  int port = 0;
  /// Different for each job, and for each successive init of a job; not empty.
  std::string secret;
  std::string hostname;
  /// Version of hvdtune; rank 0 refuses ranks with another version.
  std::string version;
  /// Settings that must be equal on all ranks, as "NAME=value" lines; compared with rank 0's.
  std::string agreement;
  /// Network interfaces or numeric addresses to listen at, exclusively. Empty: rank 0 listens at
  /// `host`, and the others at the address from which they have reached it, since they can be
  /// reached there.
  std::vector<std::string> interfaces;
  /// The ranks that messages show for the ranks of this meeting, ascending, if those are not the
  /// job's; empty = they are.
  std::vector<int> names;
  Nanos timeout = 30 * kSecond;
  /// Time that a connection has to show that it is the right one. If it is not enough, the rank
  /// tries again, and if there is nothing else to try, it waits longer.
  Nanos introduction = 10 * kSecond;
  /// Rank 0: after the meeting has failed, how long it tells the reason to ranks that still arrive.
  Nanos grace = 3 * kSecond;
  /// How long a host may give no answer before it counts as gone.
  Nanos vanish = tcp::kVanishTimeout;
  /// Rank 0: a listener that exists already, with the same secret, and is closed by its last owner;
  /// null = listen as described above.
  std::shared_ptr<TcpListener> listener;
  /// Called regularly during a wait; an exception from it (Ctrl-C, for example) ends the wait.
  std::function<void()> on_wait = [] {};

  /// The number that messages show for a rank of this meeting.
  [[nodiscard]] int shown(int of) const {
    return names.empty() ? of : names[static_cast<std::size_t>(of)];
  }
};

/// Rank 0's listener, for several meetings in succession at one address; for a single meeting,
/// form_mesh() makes its own. Throws Error(kInvalidArgument) if an address cannot be listened at.
std::shared_ptr<TcpListener> listen_for_ranks(const RendezvousOptions& options);

/// Connects all ranks of a job with each other: all connect to rank 0, which compares their
/// settings and sends every rank the addresses of the others; then each rank connects to those
/// below it. Closes its own listeners before it returns. Blocks until all ranks are connected with
/// each other (so that a rank may leave immediately afterwards) or the timeout is over. A rank that
/// does not answer meanwhile, because it is stopped for example, has until then.
///
/// Throws Error(kTimeout) naming the missing ranks; Error(kInvalidArgument) if ranks disagree
/// (size, version, settings, a rank given twice, another secret) or an address cannot be listened
/// at; Error(kAborted) if a rank cannot reach another one, with addresses and reasons, or has died.
/// Every rank that is there, or arrives within the grace, gets the error of the rank that failed
/// first; later errors are only its consequences.
std::unique_ptr<Mesh> form_mesh(const RendezvousOptions& options);

}  // namespace hvdtune
