#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/threads/patience.h"
#include "transport/meeting/meet.h"

namespace hvdtune {

class Bridge;

/// The job as this rank sees it, from the moment on when the ranks have met. Any thread may read
/// it: while the engine's threads run, nothing of it changes. Its bridge goes after they have
/// ended.
struct Job {
  /// Meets the other ranks; throws what meet() throws. `in_shared_memory`: tensors travel through
  /// memory that ranks share, if they have some in common. `spin`: how long a blocked caller stays
  /// awake (see Patience); negative = chosen here.
  Job(MeetingOptions options, const std::optional<NetworkOptions>& network, bool in_shared_memory,
      Nanos spin);

  [[nodiscard]] bool is_coordinator() const { return rank == 0; }
  /// By rank: the number of its host. All 0 on one host.
  [[nodiscard]] std::vector<int> hosts() const;
  /// "host b, pid 4711"
  [[nodiscard]] std::string where(int of) const;
  /// As process_state_of(); empty for a rank of another host, which nobody can see from here.
  [[nodiscard]] std::string process_state(int of) const;
  /// Something in the arena has changed that the other hosts are to know.
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
  Bridge* bridge = nullptr;    ///< if there are several hosts, and this rank leads one; Watch's
};

}  // namespace hvdtune
