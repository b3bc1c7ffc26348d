#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace hvdtune {

/// The address of a TCP socket: an IPv4 or IPv6 address and a port.
class TcpAddress {
 public:
  TcpAddress() = default;
  /// `address`: of an AF_INET or AF_INET6 socket.
  TcpAddress(const sockaddr* address, socklen_t length);
  /// `host`: a numeric address, as host() returns it. Throws Error(kInvalidArgument).
  static TcpAddress of_digits(const std::string& host, int port);
  /// The address of a connected or listening socket on this side, and on the other side.
  static TcpAddress local(int socket);
  static TcpAddress peer(int socket);

  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] const sockaddr* data() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  [[nodiscard]] socklen_t length() const { return length_; }

  /// Numeric, e.g. "10.0.0.2" or "fd00::2".
  [[nodiscard]] std::string host() const;
  [[nodiscard]] int port() const;
  [[nodiscard]] TcpAddress with_port(int port) const;
  /// For messages: "10.0.0.2:29500", "[fd00::2]:29500".
  [[nodiscard]] std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// The addresses of a host, given by name or as a numeric address, in the order that the system
/// prefers. May query name servers, and takes as long as they do. Throws Error(kInvalidArgument)
/// for an unknown name.
std::vector<TcpAddress> resolve(const std::string& host, int port);

/// The addresses, with port 0, of these network interfaces of this host, IPv4 first. An entry may
/// also be a single numeric address. Addresses that other hosts cannot use (IPv6 link-local) are
/// left out. Throws Error(kInvalidArgument) for an interface that does not exist or has no address.
std::vector<TcpAddress> interface_addresses(const std::vector<std::string>& interfaces);

}  // namespace hvdtune
