#pragma once

#include <cstddef>
#include <vector>

namespace hvdtune {

/// The members of a communicator, sorted by host, and which of them sends which share between
/// hosts.
///
/// A message is cut into as many shares as the largest host has members; each share has a *column*:
/// one member of every host. If a host has fewer members, some of them are in several columns.
/// Hosts are in the order of their first members, and so are the members of every column: sums that
/// are taken in this order do not depend on the share.
class HostColumns {
 public:
  /// `hosts`: by member, a number that identifies its host.
  explicit HostColumns(const std::vector<int>& hosts);

  [[nodiscard]] std::size_t hosts() const { return members_.size(); }
  /// Number of columns, and of shares.
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Index of the host that `member` is on.
  [[nodiscard]] std::size_t host_of(std::size_t member) const { return host_of_[member]; }
  /// The members on a host, ascending.
  [[nodiscard]] const std::vector<std::size_t>& on_host(std::size_t host) const {
    return members_[host];
  }
  /// The member of a host that is in a column, as an index among the host's members.
  [[nodiscard]] std::size_t local_of(std::size_t column, std::size_t host) const {
    return column % members_[host].size();
  }
  /// The member of a host that is in a column.
  [[nodiscard]] std::size_t member(std::size_t column, std::size_t host) const {
    return members_[host][local_of(column, host)];
  }
  /// The columns of the member with index `local` on a host, ascending.
  [[nodiscard]] std::vector<std::size_t> columns_of(std::size_t local, std::size_t host) const;

 private:
  std::vector<std::vector<std::size_t>> members_;  // by host
  std::vector<std::size_t> host_of_;
  std::size_t count_ = 0;
};

}  // namespace hvdtune
