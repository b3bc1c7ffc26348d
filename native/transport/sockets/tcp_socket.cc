#include "transport/sockets/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace hvdtune::tcp {
namespace {

/// The end of the next sleep in a wait that calls on_wait.
Nanos end_of_slice(Nanos deadline, const OnWait& on_wait) {
  return on_wait ? std::min(deadline, monotonic_now() + kWaitSlice) : deadline;
}

Fd open_socket(int family) {
  return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

void set_option(const Fd& socket, int level, int name, int value) {
  // These options are only improvements: a kernel without one still connects.
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

/// 0 if the connection is established.
int pending_error(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

struct Attempt {
  const TcpAddress* address;
  Fd socket;
};

/// Begins to connect to all addresses; those that cannot even begin are noted in `why`.
std::vector<Attempt> begin(const std::vector<TcpAddress>& addresses,
                           const std::function<void(const TcpAddress&, int)>& failed) {
  std::vector<Attempt> attempts;
  for (const TcpAddress& address : addresses) {
    Fd socket = open_socket(address.family());
    int result = socket.valid() ? 0 : -1;
    if (socket.valid()) {
      do {
        result = ::connect(socket.get(), address.data(), address.length());
      } while (result != 0 && errno == EINTR);
    }
    if (result != 0 && errno != EINPROGRESS) {
      failed(address, errno);
    } else {
      attempts.push_back({&address, std::move(socket)});
    }
  }
  return attempts;
}

}  // namespace

int milliseconds_until(Nanos deadline) {
  if (deadline == kForever) return -1;
  const Nanos left = deadline - monotonic_now();
  if (left <= 0) return 0;
  return static_cast<int>(std::min<Nanos>((left + kMillisecond - 1) / kMillisecond, 3'600'000));
}

Fd listen(const TcpAddress& address) {
  Fd socket = open_socket(address.family());
  if (socket.valid()) {
    // A job that is restarted at once finds its port in TIME_WAIT.
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.family() == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  if (!socket.valid() || bind(socket.get(), address.data(), address.length()) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    const int error = errno;
    const std::string what = "cannot listen at " + address.text() + ": ";
    if (error == EADDRINUSE) {
      throw Error(ErrorKind::kInvalidArgument, what + "another process uses this port");
    }
    if (error == EADDRNOTAVAIL) {
      throw Error(ErrorKind::kInvalidArgument,
                  what + "no network interface of this host has this address");
    }
    throw Error(ErrorKind::kInvalidArgument, what + std::strerror(error));
  }
  return socket;
}

Fd connect(const std::vector<TcpAddress>& addresses, Nanos deadline, std::string& why,
           const std::function<bool(const Fd&, std::string& why)>& usable, const OnWait& on_wait) {
  why.clear();
  const auto failed = [&why](const TcpAddress& address, const std::string& cause) {
    why += (why.empty() ? "" : "; ") + address.text() + ": " + cause;
  };
  std::vector<Attempt> attempts = begin(
      addresses, [&](const TcpAddress& address, int error) { failed(address, strerror(error)); });
  while (!attempts.empty()) {
    std::vector<pollfd> entries;
    for (const Attempt& attempt : attempts) entries.push_back({attempt.socket.get(), POLLOUT, 0});
    const int ready =
        poll(entries.data(), entries.size(), milliseconds_until(end_of_slice(deadline, on_wait)));
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0 && on_wait) on_wait();
    for (std::size_t i = attempts.size(); i-- > 0 && ready > 0;) {
      if (entries[i].revents == 0) continue;
      Attempt attempt = std::move(attempts[i]);
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
      std::string cause;
      if (const int error = pending_error(attempt.socket.get()); error != 0) {
        failed(*attempt.address, std::strerror(error));
      } else if (usable(attempt.socket, cause)) {
        return std::move(attempt.socket);
      } else {
        failed(*attempt.address, cause);
      }
    }
    if (monotonic_now() >= deadline) break;
  }
  for (const Attempt& attempt : attempts) failed(*attempt.address, "no answer");
  return {};
}

void send_at_once(const Fd& socket) { set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

void notice_vanished_host(const Fd& socket, Nanos vanish) {
  const auto seconds = [](Nanos time) {
    return static_cast<int>(std::max<Nanos>(1, (time + kSecond / 2) / kSecond));
  };
  // For data that is not acknowledged …
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(vanish / kMillisecond));
  // … and for a connection on which this side only waits: the first probe after a third of the
  // time, four probes in the rest.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds(vanish / 3));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds(vanish / 6));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

bool wait_for(int fd, short events, Nanos deadline, const OnWait& on_wait) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, milliseconds_until(end_of_slice(deadline, on_wait)));
    if (ready <= 0 && on_wait) on_wait();
    if (ready > 0) return true;
    if (ready == 0 && monotonic_now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return true;  // the next call reports the error
  }
}

Outcome send_all(const Fd& socket, std::string_view bytes, Nanos deadline, const OnWait& on_wait) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLOUT, deadline, on_wait)) return Outcome::kTimeout;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Outcome::kClosed;
    } else if (errno != EINTR) {
      return Outcome::kFailed;
    }
  }
  return Outcome::kDone;
}

Outcome receive_all(const Fd& socket, void* to, std::size_t bytes, Nanos deadline,
                    const OnWait& on_wait) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(socket.get(), at, bytes, 0);
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || errno == ECONNRESET) {
      return Outcome::kClosed;
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLIN, deadline, on_wait)) return Outcome::kTimeout;
    } else if (errno != EINTR) {
      return Outcome::kFailed;
    }
  }
  return Outcome::kDone;
}

std::string with_length(std::string_view message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  static_assert(sizeof(length) == kLengthBytes);
  std::string framed(reinterpret_cast<const char*>(&length), sizeof(length));
  return framed.append(message);
}

Outcome send_message(const Fd& socket, std::string_view message, Nanos deadline,
                     const OnWait& on_wait) {
  HVD_CHECK(message.size() <= kMaxMessage);
  return send_all(socket, with_length(message), deadline, on_wait);
}

Outcome receive_message(const Fd& socket, std::string& message, Nanos deadline,
                        const OnWait& on_wait, std::size_t most) {
  std::uint32_t length = 0;
  if (const Outcome outcome = receive_all(socket, &length, sizeof(length), deadline, on_wait);
      outcome != Outcome::kDone) {
    return outcome;
  }
  if (length > most) {
    errno = EMSGSIZE;
    return Outcome::kFailed;
  }
  message.resize(length);
  return receive_all(socket, message.data(), length, deadline, on_wait);
}

std::string describe_failure(int error, Nanos vanish) {
  switch (error) {
    case 0:
    case EPIPE:
    case ECONNRESET:
      return "it closed the connection";
    case ETIMEDOUT:
      return "it has not answered for " + std::to_string(vanish / kSecond) +
             " s: its host is down, or the network between the hosts is cut";
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
      return std::string("the network between the hosts is cut (") + std::strerror(error) + ")";
    default:
      return std::strerror(error);
  }
}

}  // namespace hvdtune::tcp
