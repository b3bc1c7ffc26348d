#include "transport/sockets/tcp_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "base/check.h"
#include "base/error.h"

namespace hvdtune {
namespace {

std::vector<TcpAddress> look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "host " + host + " has no known address: " +
                    (failure == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<TcpAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    addresses.emplace_back(entry->ai_addr, static_cast<socklen_t>(entry->ai_addrlen));
  }
  return addresses;
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

TcpAddress::TcpAddress(const sockaddr* address, socklen_t length) : length_(length) {
  HVD_CHECK(length <= sizeof(storage_));
  std::memcpy(&storage_, address, length);
}

TcpAddress TcpAddress::of_digits(const std::string& host, int port) {
  return look_up(host, port, AI_NUMERICHOST).front();
}

TcpAddress TcpAddress::local(int socket) {
  TcpAddress address;
  address.length_ = sizeof(address.storage_);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    throw Error(ErrorKind::kAborted,
                std::string("cannot tell the address of a socket: ") + std::strerror(errno));
  }
  return address;
}

TcpAddress TcpAddress::peer(int socket) {
  TcpAddress address;
  address.length_ = sizeof(address.storage_);
  // The peer may have left already; then there is no address.
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    return {};
  }
  return address;
}

std::string TcpAddress::host() const {
  char text[NI_MAXHOST];
  if (length_ == 0 ||
      getnameinfo(data(), length_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return text;
}

int TcpAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return 0;
}

TcpAddress TcpAddress::with_port(int port) const {
  TcpAddress address = *this;
  const auto number = htons(static_cast<std::uint16_t>(port));
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage_)->sin_port = number;
  } else if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage_)->sin6_port = number;
  }
  return address;
}

std::string TcpAddress::text() const {
  if (length_ == 0) return host();
  const std::string digits = family() == AF_INET6 ? "[" + host() + "]" : host();
  return digits + ":" + std::to_string(port());
}

std::vector<TcpAddress> resolve(const std::string& host, int port) {
  return look_up(host, port, 0);
}

std::vector<TcpAddress> interface_addresses(const std::vector<std::string>& interfaces) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    throw Error(ErrorKind::kAborted,
                std::string("cannot list the network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  std::vector<TcpAddress> addresses;
  std::set<std::string> present;
  std::set<std::string> without(interfaces.begin(), interfaces.end());
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    present.insert(entry->ifa_name);
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || is_link_local(entry->ifa_addr)) continue;
    const TcpAddress address(
        entry->ifa_addr,
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    const std::string digits = address.host();
    const bool chosen = std::ranges::any_of(interfaces, [&](const std::string& wanted) {
      return wanted == entry->ifa_name || wanted == digits;
    });
    if (!chosen) continue;
    addresses.push_back(address);
    without.erase(entry->ifa_name);
    without.erase(digits);
  }
  if (!without.empty()) {
    const std::string& name = *without.begin();
    throw Error(ErrorKind::kInvalidArgument,
                present.count(name) > 0
                    ? "network interface " + name + " has no address that other hosts can use"
                    : "this host has no network interface " + name + "; it has " + listed(present));
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const TcpAddress& address) { return address.family() == AF_INET; });
  return addresses;
}

}  // namespace hvdtune
