#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Sockets of type SOCK_SEQPACKET in the abstract namespace: messages keep their boundaries, names
/// leave no files behind, and the kernel vouches for the peer's identity. All calls throw
/// Error(kAborted) on unexpected failures.
namespace unix_socket {

/// Longest message.
inline constexpr std::size_t kMaxMessage = 64 << 10;

/// Listens at a name that only processes of the same network namespace can reach. Returns an
/// invalid Fd if the name is taken.
Fd listen(const std::string& name);
/// A connection, or an invalid Fd if nobody listens.
Fd connect(const std::string& name);
/// The next connection, or an invalid Fd at the deadline.
Fd accept(const Fd& listener, Nanos deadline);

/// A mailbox: `notify` reaches this process while the Fd is open. Returns an invalid Fd if the name
/// is taken.
Fd open_mailbox(const std::string& name);
/// Wakes the processes that wait at these mailboxes; skips names that nobody has opened.
void notify(const std::vector<std::string>& names);
/// Waits until the mailbox has been notified since the last call, by any process: a notice carries
/// no content, so the caller must check its meaning elsewhere. False at the deadline.
bool await_notice(const Fd& mailbox, Nanos deadline);

/// Sends one message, optionally with a descriptor. False if the peer is gone.
bool send(const Fd& socket, std::string_view message, int attached_fd = -1);
/// Receives one message; `attached_fd` receives a descriptor sent with it. False if the peer is
/// gone or the deadline has passed (then `timed_out`).
bool receive(const Fd& socket, std::string& message, Nanos deadline, bool& timed_out,
             Fd* attached_fd = nullptr);

struct PeerIdentity {
  pid_t pid;
  uid_t uid;
};
PeerIdentity peer_identity(const Fd& socket);

}  // namespace unix_socket
}  // namespace hvdtune
