#pragma once

#include <cstddef>

#include "collective/communicator.h"

namespace hvdtune {

/// How a data plane that sends messages cuts its work up. All in bytes.
struct NetworkSizes {
  std::size_t chunk;           ///< whole cache lines
  std::size_t one_shot_limit;  ///< up to here everybody sends everything to everybody
};

/// What tells one network from another. In bytes.
struct NetworkTraits {
  std::size_t most_chunk;  ///< where larger chunks stop to pay
  std::size_t journey;     ///< what a second journey through the network takes, at 1 GB/s
};

/// The sizes for `members` members: those of `tuning`, or where it leaves the choice (0) standard
/// ones.
NetworkSizes network_sizes(const Tuning& tuning, const NetworkTraits& traits, std::size_t members);

}  // namespace hvdtune
