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
/// a call that waits takes a deadline. Byte streams: message boundaries are made by length
/// prefixes.
namespace tcp {

/// After how long without an answer the other host counts as gone, where its kernel says nothing
/// (it lost power, a cable was cut).
inline constexpr Nanos kVanishTimeout = 20 * kSecond;

/// Longest message that send_message() and receive_message() pass on.
inline constexpr std::size_t kMaxMessage = 1 << 20;

/// Called now and then (every kWaitSlice) by what waits; what it throws ends the wait. Empty: not
/// called.
using OnWait = std::function<void()>;
inline constexpr Nanos kWaitSlice = 50 * kMillisecond;

/// Accepts connections to exactly this address; port 0 = any free one. Throws
/// Error(kInvalidArgument) when the port is taken or the address is not this host's.
Fd listen(const TcpAddress& address);

/// The first of these addresses that lets itself be connected, all being tried at once; invalid at
/// the deadline, or when all have refused: `why` is one clause a address then. An address that this
/// host cannot even try (it has no IPv6, say) is one that has refused. `usable(fd)` decides whether
/// a connection is the one that is wanted; if not, others are waited for.
Fd connect(const std::vector<TcpAddress>& addresses, Nanos deadline, std::string& why,
           const std::function<bool(const Fd&, std::string& why)>& usable,
           const OnWait& on_wait = {});

/// Small messages do not wait for company.
void send_at_once(const Fd& socket);
/// Fails (ETIMEDOUT) when the other host has not answered for about `vanish`, also while nothing is
/// sent. Only for a connection with little on its way: the kernel also counts it as no answer when
/// a process does not read for that long.
void notice_vanished_host(const Fd& socket, Nanos vanish);

/// How a transfer ended.
enum class Outcome { kDone, kClosed, kTimeout, kFailed };

/// Waits until `events` (of poll) or an error; false at the deadline.
bool wait_for(int fd, short events, Nanos deadline, const OnWait& on_wait = {});

/// All bytes or not kDone. On kFailed errno tells why.
Outcome send_all(const Fd& socket, std::string_view bytes, Nanos deadline,
                 const OnWait& on_wait = {});
Outcome receive_all(const Fd& socket, void* to, std::size_t bytes, Nanos deadline,
                    const OnWait& on_wait = {});

/// A message with its length in front. A longer one than `most` bytes is kFailed (EMSGSIZE), before
/// memory is taken for it.
Outcome send_message(const Fd& socket, std::string_view message, Nanos deadline,
                     const OnWait& on_wait = {});
Outcome receive_message(const Fd& socket, std::string& message, Nanos deadline,
                        const OnWait& on_wait = {}, std::size_t most = kMaxMessage);
/// The length in front of a message.
inline constexpr std::size_t kLengthBytes = 4;
std::string with_length(std::string_view message);

/// For poll(): rounded up; -1 for kForever.
int milliseconds_until(Nanos deadline);

/// "it has not answered for 20 s …", "it closed the connection", …: what an errno of recv or send
/// says of the other side; 0 = closed.
std::string describe_failure(int error, Nanos vanish);

}  // namespace tcp
}  // namespace hvdtune
