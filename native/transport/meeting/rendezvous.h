#pragma once

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

/// What a rank brings to a meeting over the network.
struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  /// Where rank 0 listens, as the others reach it; best in digits: a name may stand for other
  /// addresses on its own host than elsewhere.
  std::string host = "127.0.0.1";
  int port = 0;
  /// Different for each job, and for each successive init of one; not empty.
  std::string secret;
  std::string hostname;
  /// Of hvdtune; ranks with another one are refused.
  std::string version;
  /// Settings that must be equal on all ranks, as "NAME=value" lines; compared with rank 0's.
  std::string agreement;
  /// Network interfaces, or addresses in digits, to listen at, and nowhere else. Empty: rank 0
  /// listens at `host`, and the others where they have reached it from: on that way they are
  /// reached, too.
  std::vector<std::string> interfaces;
  Nanos timeout = 30 * kSecond;
  /// Rank 0: after the meeting has failed, how long those who still come are told why.
  Nanos grace = 3 * kSecond;
  /// After how long without an answer a host counts as gone.
  Nanos vanish = tcp::kVanishTimeout;
  /// Rank 0: what listens already, with the same secret, and is closed with its last owner; null =
  /// listen as described above.
  std::shared_ptr<TcpListener> listener;
  /// Called now and then while waiting; what it throws ends the wait (a Ctrl-C, say).
  std::function<void()> on_wait = [] {};
};

/// What rank 0 listens with, as form_mesh() does by itself: for several meetings at one place, one
/// after the other. Throws Error(kInvalidArgument) when an address cannot be had.
std::shared_ptr<TcpListener> listen_for_ranks(const RendezvousOptions& options);

/// Connects all ranks of a job with each other: all come to rank 0, which compares what they say of
/// themselves and tells everybody where the others are; then each rank connects to those below it.
/// What it has opened to listen is closed when it returns. Blocks until all have come and are
/// connected with each other, so that a rank may leave right behind it, or the timeout is over.
///
/// Throws Error(kTimeout) naming the ranks that did not come, and Error(kInvalidArgument) when
/// ranks disagree (size, version, settings, a rank given twice, another secret) or an address
/// cannot be listened at; Error(kAborted) when a rank cannot be reached from another one, with
/// addresses and reasons, or has died. Every rank that is there, or comes within the grace, gets
/// the error of the rank that failed first; the others' errors are only consequences.
std::unique_ptr<Mesh> form_mesh(const RendezvousOptions& options);

}  // namespace hvdtune
