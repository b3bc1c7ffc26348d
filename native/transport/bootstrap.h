#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "transport/heap_file.h"
#include "transport/mesh.h"
#include "transport/unix_socket.h"

namespace hvdtune {

/// What a rank brings to the meeting point.
struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  /// The ranks of this host, ascending; empty = all of the job. The first of them leads.
  std::vector<int> local;
  /// Name of the meeting point, equal on all ranks of a job and different between jobs and between
  /// successive inits of one job.
  std::string endpoint;
  /// Shared by the ranks of a job; empty where no launcher handed one out. The peer's user id is
  /// checked in any case.
  std::string secret;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines; compared with rank 0's.
  std::string agreement;
  Nanos timeout = 30 * kSecond;
  /// The leader: CPUs that the host's ranks share; 0 = those of their affinities and quotas
  /// together.
  int cpus = 0;
  /// Called now and then while waiting; what it throws ends the wait (a Ctrl-C, say).
  std::function<void()> on_wait = [] {};
};

struct PeerInfo {
  std::string hostname;
  int pid = 0;
  bool here = true;  ///< on this host: the pid means something, and memory is shared
};

/// A host's ranks after they have met: the shared arena, and a connection along the leader's star
/// that closes when its process ends. What a job on several hosts has besides comes from meet()
/// (transport/meet.h).
struct HostSession {
  std::shared_ptr<Arena> arena;
  /// Null for a single rank, where the kernel refuses it, and on several hosts.
  std::shared_ptr<HeapFile> heap;
  std::vector<PeerInfo> peers;  ///< by rank; of other hosts' ranks, bootstrap() knows nothing
  std::vector<Fd> sockets;      ///< by rank; the leader: of all others here; others: of the leader
  int leader = 0;
  std::vector<int> local;  ///< the ranks of this host, ascending

  /// Connects all ranks; null where all are on one host.
  std::shared_ptr<Mesh> mesh;
  /// On leaders: connects these; its ranks count the hosts, in the order of their leaders.
  std::shared_ptr<Mesh> leaders;
  std::vector<int> host_of;  ///< by rank: the number of its host

  [[nodiscard]] bool across_hosts() const { return mesh != nullptr; }
  [[nodiscard]] bool is_here(int rank) const { return peers[static_cast<std::size_t>(rank)].here; }
  /// Whether ranks are on different hosts.
  /// Which of this host's ranks `rank` is.
  [[nodiscard]] int local_index(int rank) const {
    return static_cast<int>(std::lower_bound(local.begin(), local.end(), rank) - local.begin());
  }
  [[nodiscard]] bool spans_hosts(const std::vector<int>& ranks) const {
    return across_hosts() && are_apart(ranks);
  }

 private:
  [[nodiscard]] bool are_apart(const std::vector<int>& ranks) const;
};

/// Brings the ranks of a host together. Blocks until all have come or the timeout is over.
/// Throws Error(kTimeout) naming the ranks that did not come, Error(kInvalidArgument) when ranks
/// disagree about the job (size, version, settings, a rank given twice), on every rank that is
/// there.
HostSession bootstrap(const BootstrapOptions& options);

}  // namespace hvdtune
