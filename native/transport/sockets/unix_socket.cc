#include "transport/sockets/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace hvdtune {
namespace unix_socket {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorKind::kAborted,
              std::string("cannot ") + what + " a local socket: " + std::strerror(errno));
}

Fd open_socket(int type = SOCK_SEQPACKET) {
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket.valid()) fail("create");
  return socket;
}

/// Abstract address: a zero byte, then the name.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

/// False when the name is taken.
bool take_name(const Fd& socket, const std::string& name) {
  const auto [address, length] = abstract_address(name);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return true;
  if (errno != EADDRINUSE) fail("name");
  return false;
}

bool wait_readable(int fd, Nanos deadline) {
  while (true) {
    // Looks at least once: after a suspension the time is over, but messages may have arrived
    // meanwhile.
    const Nanos left =
        std::max<Nanos>(0, deadline == kForever ? kSecond : deadline - monotonic_now());
    pollfd entry{fd, POLLIN, 0};
    const Nanos timeout_ms = left > 0 ? std::min<Nanos>(left / kMillisecond + 1, 1000) : 0;
    const int ready = poll(&entry, 1, static_cast<int>(timeout_ms));
    if (ready > 0) return true;
    if (ready == 0 && left == 0) return false;
    if (ready < 0 && errno != EINTR) fail("wait for");
  }
}

}  // namespace

Fd listen(const std::string& name) {
  Fd socket = open_socket();
  if (!take_name(socket, name)) return {};
  if (::listen(socket.get(), SOMAXCONN) != 0) fail("listen on");
  return socket;
}

Fd connect(const std::string& name) {
  Fd socket = open_socket();
  const auto [address, length] = abstract_address(name);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == ECONNREFUSED || errno == EAGAIN) return {};
    if (errno != EINTR) fail("connect");
  }
  return socket;
}

Fd accept(const Fd& listener, Nanos deadline) {
  while (wait_readable(listener.get(), deadline)) {
    const int fd = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) return Fd(fd);
    if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) fail("accept");
  }
  return {};
}

Fd open_mailbox(const std::string& name) {
  Fd socket = open_socket(SOCK_DGRAM | SOCK_NONBLOCK);
  if (!take_name(socket, name)) return {};
  return socket;
}

void notify(const std::vector<std::string>& names) {
  const Fd socket = open_socket(SOCK_DGRAM | SOCK_NONBLOCK);
  for (const std::string& name : names) {
    const auto [address, length] = abstract_address(name);
    // It fails if nobody listens, or if the mailbox is full of notices already.
    sendto(socket.get(), "", 0, MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length);
  }
}

bool await_notice(const Fd& mailbox, Nanos deadline) {
  if (!wait_readable(mailbox.get(), deadline)) return false;
  char byte;
  // Many notices count as one; the bound stops a stranger who never stops sending.
  for (int i = 0; i < 64 && recv(mailbox.get(), &byte, sizeof(byte), 0) >= 0; ++i) {
  }
  return true;
}

bool send(const Fd& socket, std::string_view message, int attached_fd) {
  iovec part{const_cast<char*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (attached_fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* entry = CMSG_FIRSTHDR(&header);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(entry), &attached_fd, sizeof(int));
  }
  while (true) {
    if (sendmsg(socket.get(), &header, MSG_NOSIGNAL) >= 0) return true;
    if (errno != EINTR) return false;
  }
}

bool receive(const Fd& socket, std::string& message, Nanos deadline, bool& timed_out,
             Fd* attached_fd) {
  timed_out = false;
  message.resize(kMaxMessage);
  while (true) {
    if (!wait_readable(socket.get(), deadline)) {
      timed_out = true;
      return false;
    }
    iovec part{message.data(), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (bytes <= 0) return false;
    message.resize(static_cast<std::size_t>(bytes));
    for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
         entry = CMSG_NXTHDR(&header, entry)) {
      if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry), sizeof(int));
      Fd received(fd);
      if (attached_fd != nullptr) *attached_fd = std::move(received);
    }
    return true;
  }
}

PeerIdentity peer_identity(const Fd& socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    fail("identify the peer of");
  }
  return {credentials.pid, credentials.uid};
}

}  // namespace unix_socket
}  // namespace hvdtune
