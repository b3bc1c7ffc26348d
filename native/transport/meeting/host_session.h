#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/arena/arena.h"
#include "transport/arena/heap_file.h"
#include "transport/sockets/mesh.h"

namespace hvdtune {

// What meet() returns: the engine, its communicators, watch and bridge read it while the job runs.

struct PeerInfo {
  std::string hostname;
  int pid = 0;  ///< for messages, and for the kernel if the process is `here`
  /// Whether the kernel knows the process by this pid here. It does not on another host, nor in a
  /// container with pids of its own, even if memory is shared (HostSession::is_here).
  bool here = true;
};

/// A host's ranks after they have met: the shared arena, and a connection between the leader and
/// each other rank, which closes when either process ends. For a job on several hosts, meet()
/// (transport/meeting/meet.h) adds the rest.
struct HostSession {
  std::shared_ptr<Arena> arena;
  /// Null for a single rank, if the kernel refuses it, and on several hosts.
  std::shared_ptr<HeapFile> heap;
  std::vector<PeerInfo> peers;  ///< by rank; meet_on_host() leaves other hosts' ranks empty
  std::vector<Fd> sockets;      ///< by rank; leader: to all others here; others: to the leader
  int leader = 0;
  std::vector<int> local;  ///< the ranks of this host, ascending

  /// Connects all ranks; null if all are on one host.
  std::shared_ptr<Mesh> mesh;
  /// On leaders: connects the leaders; its ranks are the numbers of the hosts, in the order of
  /// their leaders.
  std::shared_ptr<Mesh> leaders;
  std::vector<int> host_of;  ///< by rank: the number of its host

  [[nodiscard]] bool across_hosts() const { return mesh != nullptr; }
  /// Whether `rank` is on this host, where memory is shared.
  [[nodiscard]] bool is_here(int rank) const {
    return std::binary_search(local.begin(), local.end(), rank);
  }
  /// Index of `rank` among this host's ranks.
  [[nodiscard]] int local_index(int rank) const {
    return static_cast<int>(std::lower_bound(local.begin(), local.end(), rank) - local.begin());
  }
  /// Whether ranks are on different hosts.
  [[nodiscard]] bool spans_hosts(const std::vector<int>& ranks) const {
    return across_hosts() && are_apart(ranks);
  }

 private:
  [[nodiscard]] bool are_apart(const std::vector<int>& ranks) const;
};

}  // namespace hvdtune
