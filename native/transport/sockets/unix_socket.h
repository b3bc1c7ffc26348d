#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Sockets of type SOCK_SEQPACKET in the abstract namespace: messages keep their boundaries, the
/// name leaves nothing behind, and the kernel vouches for the peer's identity. All calls throw
/// Error(kAborted) on unexpected failures.
namespace unix_socket {

/// Longest message.
inline constexpr std::size_t kMaxMessage = 64 << 10;

/// An address that only processes of the same network namespace reach. An invalid Fd when the name
/// is taken.
Fd listen(const std::string& name);
/// A connection, or an invalid Fd when nobody listens.
Fd connect(const std::string& name);
/// The next connection, or an invalid Fd at the deadline.
Fd accept(const Fd& listener, Nanos deadline);

/// Where `notify` reaches this process while the Fd is open. An invalid Fd when the name is taken.
Fd open_mailbox(const std::string& name);
/// Wakes those who wait at these mailboxes; names that nobody has opened are passed over.
void notify(const std::vector<std::string>& names);
/// Waits until somebody (anybody: what a notice means must be looked up elsewhere) has notified the
/// mailbox since the last call. False at the deadline.
bool await_notice(const Fd& mailbox, Nanos deadline);

/// Sends one message, optionally with a descriptor. False when the peer is gone.
bool send(const Fd& socket, std::string_view message, int attached_fd = -1);
/// Receives one message; `attached_fd` receives a descriptor that came along. False when the peer
/// is gone or the deadline passed (then `timed_out`).
bool receive(const Fd& socket, std::string& message, Nanos deadline, bool& timed_out,
             Fd* attached_fd = nullptr);

struct PeerIdentity {
  pid_t pid;
  uid_t uid;
};
PeerIdentity peer_identity(const Fd& socket);

}  // namespace unix_socket
}  // namespace hvdtune
