#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/sockets/mesh.h"
#include "transport/sockets/tcp_address.h"
#include "wire/meeting.h"

namespace hvdtune {

// How the ranks of a rendezvous (rendezvous.h, which alone calls this) connect: first each with
// rank 0, by reach_patiently(); then, when rank 0 has said where all are, each with all others, by
// connect_all().

class TcpListener;
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
/// in crowds may have taken this process's place in the listener's queue.
///
/// A `known` rank is asked to welcome this one, which says that it is who was meant: several hosts
/// can have the same address on different networks, and a host can reach itself by one that another
/// one has, too. Throws what options.on_wait throws.
Attempt reach_patiently(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
                        const wire::Introduction& introduction, bool known, Nanos deadline);

/// The second half of a rendezvous: each rank of the `directory` connects to those below it.
/// `notices`: by rank, the connections with rank 0 that there are; `listener`: where higher ranks
/// come to, null where none does.
///
/// Returns on any rank only when all ranks are connected with all others: then each of them may
/// leave without a word to those that are slower. Throws Error(kAborted) when a rank cannot be
/// reached, has died or has failed, and Error(kTimeout) naming one that did not connect in time;
/// the others learn of it.
std::unique_ptr<Mesh> connect_all(const RendezvousOptions& options,
                                  const wire::Directory& directory, std::vector<Fd> notices,
                                  TcpListener* listener);

}  // namespace hvdtune
