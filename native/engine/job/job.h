#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/threads/patience.h"
#include "transport/meeting/meet.h"

namespace hvdtune {

class Bridge;

/// The job as this rank sees it, after the ranks have met. Any thread may read it: it does not
/// change while the engine's threads run. Its bridge is destroyed after they have ended.
struct Job {
  /// Meets the other ranks; throws what meet() throws. `in_shared_memory`: tensors pass through
  /// shared memory if ranks have it in common. `spin`: how long a blocked caller stays awake (see
  /// Patience); negative = chosen here.
  Job(MeetingOptions options, const std::optional<NetworkOptions>& network, bool in_shared_memory,
      Nanos spin);

  [[nodiscard]] bool is_coordinator() const { return rank == 0; }
  /// By rank: the number of its host. All 0 on one host.
  [[nodiscard]] std::vector<int> hosts() const;
  /// "host b, pid 4711"
  [[nodiscard]] std::string where(int of) const;
  /// Like process_state_of(); empty for a rank whose process cannot be seen from here: of another
  /// host, or in a container with pids of its own.
  [[nodiscard]] std::string process_state(int of) const;
  /// Call it after a change in the arena that the other hosts must learn of.
  void wake_bridge() const {
    if (bridge != nullptr) arena.bridge_bell().ring(Urgency::kUrgent);
  }

  const MeetingOptions meeting;
  const int rank;
  const int size;
  HostSession session;
  Arena& arena;
  const bool in_shared_memory;
  const Patience patience;
  Doorbell& doorbell;          ///< this rank's
  Doorbell& coordinator_bell;  ///< the bridge's if rank 0 is on another host
  Bridge* bridge = nullptr;    ///< owned by Watch; only on leaders, if there are several hosts
};

}  // namespace hvdtune
