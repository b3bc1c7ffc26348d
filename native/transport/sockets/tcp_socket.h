#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/sockets/tcp_address.h"

namespace hvdtune {

/// TCP connections between hosts. All sockets are non-blocking, close on exec, and raise no signal;
/// a call that waits takes a deadline. TCP carries byte streams, so messages have a length prefix.
namespace tcp {

/// How long the other host may give no answer before it counts as gone, if its kernel does not
/// report the end (after a power loss or a cut cable).
inline constexpr Nanos kVanishTimeout = 20 * kSecond;

/// Longest message that send_message() and receive_message() pass on.
inline constexpr std::size_t kMaxMessage = 1 << 20;

/// A waiting function calls this every kWaitSlice; an exception from it ends the wait. Empty: not
/// called.
using OnWait = std::function<void()>;
inline constexpr Nanos kWaitSlice = 50 * kMillisecond;

/// Accepts connections to exactly this address; port 0 = any free one. Throws
/// Error(kInvalidArgument) if the port is taken or the address is not this host's.
Fd listen(const TcpAddress& address);

/// Tries all addresses at once and returns the first connection. Returns an invalid Fd at the
/// deadline, or if all have refused; `why` then has one clause per address. An address that this
/// host cannot even try (for example an IPv6 address without IPv6) counts as refused. `usable(fd)`
/// decides whether a connection is the intended one; if not, this waits for others.
Fd connect(const std::vector<TcpAddress>& addresses, Nanos deadline, std::string& why,
           const std::function<bool(const Fd&, std::string& why)>& usable,
           const OnWait& on_wait = {});

/// Sends small messages immediately (TCP_NODELAY).
void send_at_once(const Fd& socket);
/// Makes the connection fail (ETIMEDOUT) if the other host has not answered for about `vanish`,
/// even while nothing is sent. Only for a connection with little traffic: the kernel also counts a
/// process that does not read for that long as no answer.
void notice_vanished_host(const Fd& socket, Nanos vanish);

/// How a transfer ended.
enum class Outcome { kDone, kClosed, kTimeout, kFailed };

/// Waits until `events` (of poll) or an error; false at the deadline.
bool wait_for(int fd, short events, Nanos deadline, const OnWait& on_wait = {});

/// kDone only if all bytes were sent. On kFailed errno tells why.
Outcome send_all(const Fd& socket, std::string_view bytes, Nanos deadline,
                 const OnWait& on_wait = {});
Outcome receive_all(const Fd& socket, void* to, std::size_t bytes, Nanos deadline,
                    const OnWait& on_wait = {});

/// A message, preceded by its length. A message longer than `most` bytes is kFailed (EMSGSIZE),
/// before memory is allocated for it.
Outcome send_message(const Fd& socket, std::string_view message, Nanos deadline,
                     const OnWait& on_wait = {});
Outcome receive_message(const Fd& socket, std::string& message, Nanos deadline,
                        const OnWait& on_wait = {}, std::size_t most = kMaxMessage);
/// Size of the length prefix of a message.
inline constexpr std::size_t kLengthBytes = 4;
std::string with_length(std::string_view message);

/// For poll(): rounded up; -1 for kForever.
int milliseconds_until(Nanos deadline);

/// "it has not answered for 20 s …", "it closed the connection", …: describes the other side's
/// failure for an errno of recv or send; 0 = closed.
std::string describe_failure(int error, Nanos vanish);

}  // namespace tcp
}  // namespace hvdtune
