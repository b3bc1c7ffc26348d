#include "transport/meeting/host_session.h"

namespace hvdtune {

bool HostSession::are_apart(const std::vector<int>& ranks) const {
  const auto host = [this](int rank) { return host_of[static_cast<std::size_t>(rank)]; };
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return host(rank) != host(ranks.front()); });
}

}  // namespace hvdtune
