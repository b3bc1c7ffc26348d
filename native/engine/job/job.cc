#include "engine/job/job.h"

#include <utility>

#include "observe/status/stall.h"

namespace hvdtune {
namespace {

Patience chosen_patience(Nanos wanted, const Arena& arena) {
  const bool crowded = arena.oversubscribed();
  const Nanos standard = crowded ? 500 * kMicrosecond : 50 * kMicrosecond;
  return {.awake = wanted >= 0 ? wanted : standard, .gives_way = crowded};
}

}  // namespace

Job::Job(MeetingOptions options, const std::optional<NetworkOptions>& network,
         bool in_shared_memory, Nanos spin)
    : meeting(std::move(options)),
      rank(meeting.rank),
      size(meeting.size),
      session(meet(meeting, network)),
      arena(*session.arena),
      in_shared_memory(in_shared_memory),
      patience(chosen_patience(spin, arena)),
      doorbell(arena.doorbell(rank)),
      coordinator_bell(session.is_here(0) ? arena.doorbell(0) : arena.bridge_bell()) {
  if (!in_shared_memory) session.heap.reset();
  // The connections do not report an abort on this host alone.
  if (session.mesh) session.mesh->set_outside_cause([this] { return arena.abort_status(); });
}

std::vector<int> Job::hosts() const {
  return session.across_hosts() ? session.host_of
                                : std::vector<int>(static_cast<std::size_t>(size));
}

std::string Job::where(int of) const {
  const PeerInfo& peer = session.peers[static_cast<std::size_t>(of)];
  return "host " + peer.hostname + ", pid " + std::to_string(peer.pid);
}

std::string Job::process_state(int of) const {
  const PeerInfo& peer = session.peers[static_cast<std::size_t>(of)];
  return peer.here ? process_state_of(peer.pid) : std::string();
}

}  // namespace hvdtune
