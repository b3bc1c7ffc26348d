#pragma once

#include <cstddef>

#include "collective/communicator.h"

namespace hvdtune {

/// The sizes of pieces in a data plane that sends messages, in bytes.
struct NetworkSizes {
  std::size_t chunk;           ///< whole cache lines
  std::size_t one_shot_limit;  ///< up to here every member sends all its data to all others
};

/// Properties of a network, in bytes.
struct NetworkTraits {
  std::size_t most_chunk;  ///< larger chunks do not pay
  std::size_t journey;     ///< sent at 1 GB/s in the time of a second trip through the network
};

/// The sizes for `members` members: those of `tuning`, or standard ones for sizes that are 0 there.
NetworkSizes network_sizes(const Tuning& tuning, const NetworkTraits& traits, std::size_t members);

}  // namespace hvdtune
