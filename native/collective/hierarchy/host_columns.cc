#include "collective/hierarchy/host_columns.h"

#include <algorithm>

namespace hvdtune {

HostColumns::HostColumns(const std::vector<int>& hosts) {
  std::vector<int> seen;
  for (std::size_t member = 0; member < hosts.size(); ++member) {
    const auto known = std::find(seen.begin(), seen.end(), hosts[member]);
    const auto host = static_cast<std::size_t>(known - seen.begin());
    if (known == seen.end()) {
      seen.push_back(hosts[member]);
      members_.emplace_back();
    }
    members_[host].push_back(member);
    host_of_.push_back(host);
  }
  for (const auto& members : members_) count_ = std::max(count_, members.size());
}

std::vector<std::size_t> HostColumns::columns_of(std::size_t local, std::size_t host) const {
  std::vector<std::size_t> columns;
  for (std::size_t column = local; column < count_; column += members_[host].size()) {
    columns.push_back(column);
  }
  return columns;
}

}  // namespace hvdtune
