#include "transport/control/host_tree.h"

#include <cstddef>

#include "base/check.h"

namespace hvdtune {
namespace {

/// Host 0 has hosts 1 … fanout below it, host 1 the next `fanout` hosts, and so on.
int parent_of(int host, int fanout) { return host == 0 ? -1 : (host - 1) / fanout; }

}  // namespace

HostTree::HostTree(int hosts, int own, int fanout)
    : parent_(parent_of(own, fanout)), next_to_(static_cast<std::size_t>(hosts), parent_) {
  HVD_CHECK(fanout > 0 && own >= 0 && own < hosts);
  if (parent_ >= 0) neighbours_.push_back(parent_);
  for (int host = 0; host < hosts; ++host) {
    // Go up from there until this host is reached or passed.
    int below = -1;
    int at = host;
    while (at > own) {
      below = at;
      at = parent_of(at, fanout);
    }
    if (at != own) continue;
    next_to_[static_cast<std::size_t>(host)] = below;
    if (below != host || host == own) continue;
    children_.push_back(host);
    neighbours_.push_back(host);
  }
}

}  // namespace hvdtune
