#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/communicator.h"
#include "collective/kernels/helper_pool.h"
#include "transport/meeting/host_session.h"

namespace hvdtune {

/// Describes the members of one process set to the data plane that connects them.
struct CommunicatorSpec {
  const HostSession& session;
  const std::vector<int>& members;  ///< global ranks, in the order in which sums are taken
  int index;                        ///< of this rank among them
  /// Number of the process set, or of a part of its members: the same on all of them, and different
  /// for all communicators that exist at once. 0: all ranks of the job, made first.
  int number;
  bool only_one;      ///< no rank belongs to a second communicator until share_buffers()
  Patience patience;  ///< in waits for other members
  std::shared_ptr<HelperPool> helpers = nullptr;  ///< this rank's, if it has any
};

/// Makes a data plane's communicators; the engine makes all of them through such a factory.
using CommunicatorFactory =
    std::function<std::unique_ptr<Communicator>(const CommunicatorSpec& spec)>;

/// Shared memory, for the ranks of one host.
std::unique_ptr<Communicator> make_shm_communicator(const CommunicatorSpec& spec);

/// Sockets, for any ranks of a job on several hosts.
std::unique_ptr<Communicator> make_socket_communicator(const CommunicatorSpec& spec);

/// Shared memory if all members are on one host, otherwise sockets.
std::unique_ptr<Communicator> make_own_communicator(const CommunicatorSpec& spec);

/// For sets that are on several hosts, with several members on one of them: shared memory within
/// hosts, and communicators of `between` between them. For other sets, just those of `between`.
/// `hierarchy`: the operations that may run within hosts first, and do so until
/// Communicator::tune() says otherwise. All ranks choose the same. Throws Error(kInvalidArgument),
/// the same on all members, if some cannot be connected.
CommunicatorFactory make_hierarchical_factory(Hierarchy hierarchy,
                                              CommunicatorFactory between = make_own_communicator);

struct MpiChoice {
  std::string library;   ///< path of libmpi
  bool multiple = true;  ///< ask for MPI_THREAD_MULTIPLE, if MPI is not initialised yet
};

/// MPI, for processes that it knows as one job. `control` connects the same members: they use it,
/// while communicator 0 is made, to agree on what MPI needs before its first use. Throws
/// Error(kInvalidArgument), the same on all members, if MPI cannot be used.
CommunicatorFactory make_mpi_factory(MpiChoice choice,
                                     CommunicatorFactory control = make_own_communicator);

struct GlooChoice {
  std::string module;  ///< path of our module that links Gloo
  /// Network interface; empty = loopback, or the address where members of other hosts have reached
  /// this one.
  std::string interface;
  Nanos timeout = 30 * kSecond;  ///< for connecting, and for every message
};

/// Gloo's connections over TCP, a group for every communicator. `control` connects the same
/// members; they exchange their addresses over it. Throws Error(kInvalidArgument), the same on all
/// members.
CommunicatorFactory make_gloo_factory(GlooChoice choice,
                                      CommunicatorFactory control = make_own_communicator);

/// For a rank that cannot use the chosen data plane: all ranks of the job fail with its `problem`,
/// provided that the others' factories call agree() first.
CommunicatorFactory make_failing_factory(std::string problem,
                                         CommunicatorFactory control = make_own_communicator);

// ---- for authors of factories -------------------------------------------------------------------

/// All members attempt something that may throw. If one fails, all throw the same text, as
/// Error(kInvalidArgument), after all have learned of the failure.
void agree(Communicator& control, const CommunicatorSpec& spec,
           const std::function<void()>& attempt);

}  // namespace hvdtune
