#pragma once

#include <memory>
#include <vector>

#include "base/fd.h"
#include "transport/mesh.h"
#include "wire/meeting.h"

namespace hvdtune {

class TcpListener;
struct RendezvousOptions;

/// The second half of a meeting (transport/rendezvous.h): each rank of the `directory` connects to
/// those below it. `notices`: by rank, the connections with rank 0 that there are; `listener`:
/// where higher ranks come to, null where none does.
///
/// Returns on any rank only when all ranks are connected with all others: then each of them may
/// leave without a word to those that are slower. Throws Error(kAborted) when a rank cannot be
/// reached, has died or has failed, and Error(kTimeout) naming one that did not connect in time;
/// the others learn of it.
std::unique_ptr<Mesh> connect_all(const RendezvousOptions& options,
                                  const wire::Directory& directory, std::vector<Fd> notices,
                                  TcpListener* listener);

}  // namespace hvdtune
