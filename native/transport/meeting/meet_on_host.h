#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/meeting/host_session.h"

namespace hvdtune {

// How the ranks of one host meet, at an abstract Unix socket. meet() calls meet_on_host(): at once
// in a job on one host, otherwise after the rendezvous has shown which ranks are on this host.

/// Settings of a rank for the meeting.
struct MeetingOptions {
  int rank = 0;
  int size = 1;
  /// The ranks of this host, ascending; empty = all of the job. The first of them leads.
  std::vector<int> local;
  /// Name of the meeting point, equal on all ranks of a job and different between jobs and between
  /// successive inits of one job.
  std::string endpoint;
  /// Shared by the ranks of a job; empty if no launcher provided one. The peer's user id is always
  /// checked.
  std::string secret;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines; compared with the leader's.
  std::string agreement;
  Nanos timeout = 30 * kSecond;
  /// The leader only: CPUs that the host's ranks share; 0 = computed from their affinities and
  /// quotas.
  int cpus = 0;
  /// Called regularly during a wait; an exception from it (Ctrl-C, for example) ends the wait.
  std::function<void()> on_wait = [] {};
  /// Called if the leader has hung up without a word: may wait for the reason, and throw it.
  std::function<void()> hear_reason = [] {};
};

/// Brings the ranks of a host together. Blocks until all have arrived or the timeout is over.
/// Throws, on every rank that is there, Error(kTimeout) naming the missing ranks, or
/// Error(kInvalidArgument) if ranks disagree about the job (size, version, settings, a rank given
/// twice).
HostSession meet_on_host(const MeetingOptions& options);

}  // namespace hvdtune
