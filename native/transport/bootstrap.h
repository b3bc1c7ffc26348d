#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "transport/heap_file.h"
#include "transport/unix_socket.h"

namespace hvdtune {

/// What a rank brings to the meeting point.
struct BootstrapOptions {
  int rank = 0;
  int size = 1;
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
  /// Rank 0: CPUs that the host's ranks share; 0 = those of their affinities and quotas together.
  int cpus = 0;
  /// Called now and then while waiting; what it throws ends the wait (a Ctrl-C, say).
  std::function<void()> on_wait = [] {};
};

struct PeerInfo {
  std::string hostname;
  int pid = 0;
};

/// A host's ranks after they have met: the shared arena, and a connection along rank 0's star that
/// closes when its process ends.
struct HostSession {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<HeapFile> heap;  ///< null for a single rank, and where the kernel refuses it
  std::vector<PeerInfo> peers;     ///< by rank
  std::vector<Fd> sockets;         ///< rank 0: one a rank (own entry invalid); others: only [0]
};

/// Brings the ranks of a job together. Blocks until all have come or the timeout is over.
/// Throws Error(kTimeout) naming the ranks that did not come, Error(kInvalidArgument) when ranks
/// disagree about the job (size, version, settings, a rank given twice), on every rank that is
/// there.
HostSession bootstrap(const BootstrapOptions& options);

}  // namespace hvdtune
