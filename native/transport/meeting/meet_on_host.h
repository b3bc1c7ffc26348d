#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/meeting/host_session.h"

namespace hvdtune {

// How the ranks of one host meet, at an abstract Unix socket. meet() calls meet_on_host(): at once
// in a job on one host, otherwise when the rendezvous has shown which ranks are on this host.

/// What a rank brings to the meeting point.
struct MeetingOptions {
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

/// Brings the ranks of a host together. Blocks until all have come or the timeout is over.
/// Throws Error(kTimeout) naming the ranks that did not come, Error(kInvalidArgument) when ranks
/// disagree about the job (size, version, settings, a rank given twice), on every rank that is
/// there.
HostSession meet_on_host(const MeetingOptions& options);

}  // namespace hvdtune
