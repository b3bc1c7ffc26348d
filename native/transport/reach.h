#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/tcp_address.h"
#include "wire/meeting.h"

namespace hvdtune {

struct RendezvousOptions;

/// For one connection to show what it is; where there are several addresses, they share it.
inline constexpr Nanos kIntroductionTime = 10 * kSecond;
/// What a rank answers to another one that has reached it for one of their connections.
inline constexpr const char* kWelcome = "welcome";

/// Makes a connection between two ranks behave as its lane is to.
void configure_lane(const Fd& socket, wire::Lane lane, Nanos vanish);

/// What came of attempts to reach another rank.
struct Attempt {
  Fd socket;  ///< invalid: `why` tells
  std::string why;
  bool refused = false;  ///< somebody there does not trust this process, or the other way round
  bool closed = false;   ///< somebody there hung up, which may have been because of others
};

/// Connects to a rank, proves that this process belongs to the job, and introduces it. Tries again:
/// rank 0 may not be there yet, unless it is `known` to be, or another rank; and strangers who come
/// in crowds may have pushed this process out of the door.
///
/// A `known` rank is asked to welcome this one, which says that it is who was meant: several hosts
/// can have the same address on different networks, and a host can reach itself by one that another
/// one has, too. Throws what options.on_wait throws.
Attempt reach_patiently(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
                        const wire::Introduction& introduction, bool known, Nanos deadline);

}  // namespace hvdtune
