#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/communicator.h"
#include "collective/kernels/helper_pool.h"
#include "transport/meeting/host_session.h"

namespace hvdtune {

/// What a data plane needs to know to connect the members of one process set.
struct CommunicatorSpec {
  const HostSession& session;
  const std::vector<int>& members;  ///< global ranks, in the order in which sums are taken
  int index;                        ///< of this rank among them
  /// Of the process set, or of some of its members: the same on all of them, and different between
  /// what exists at once. 0: all ranks of the job, before anything else.
  int number;
  bool only_one;      ///< no rank belongs to another communicator as well, until share_buffers()
  Patience patience;  ///< of a wait for other members
  std::shared_ptr<HelperPool> helpers = nullptr;  ///< this rank's, if it has any
};

/// Makes a data plane's communicators; the engine knows no other way to one.
using CommunicatorFactory =
    std::function<std::unique_ptr<Communicator>(const CommunicatorSpec& spec)>;

/// Shared memory, for the ranks of one host.
std::unique_ptr<Communicator> make_shm_communicator(const CommunicatorSpec& spec);

/// Sockets, for ranks of any hosts of a job on several.
std::unique_ptr<Communicator> make_socket_communicator(const CommunicatorSpec& spec);

/// Shared memory where all members are on one host, otherwise sockets.
std::unique_ptr<Communicator> make_own_communicator(const CommunicatorSpec& spec);

/// What `between` makes; and for sets that have several members on one of several hosts, shared
/// memory within hosts and what `between` makes between them. `hierarchy`: what may go so, and does
/// until Communicator::tune() says otherwise. All ranks choose the same. Throws
/// Error(kInvalidArgument), the same on all members, where some cannot be connected.
CommunicatorFactory make_hierarchical_factory(Hierarchy hierarchy,
                                              CommunicatorFactory between = make_own_communicator);

struct MpiChoice {
  std::string library;   ///< path of libmpi
  bool multiple = true;  ///< ask for MPI_THREAD_MULTIPLE, where MPI is not initialised yet
};

/// MPI, for processes that it knows as one job. `control` connects the same members: what they have
/// to agree about before MPI can be used goes that way, while communicator 0 is made. Throws
/// Error(kInvalidArgument), the same on all members, where MPI cannot be used.
CommunicatorFactory make_mpi_factory(MpiChoice choice,
                                     CommunicatorFactory control = make_own_communicator);

struct GlooChoice {
  std::string module;  ///< path of our module that links Gloo
  /// Network interface; empty = loopback, or where the members of other hosts have reached this
  /// one.
  std::string interface;
  Nanos timeout = 30 * kSecond;  ///< of the connecting, and of every message
};

/// Gloo's connections over TCP, a group for every communicator. `control` connects the same
/// members: their addresses go that way. Throws Error(kInvalidArgument), the same on all members.
CommunicatorFactory make_gloo_factory(GlooChoice choice,
                                      CommunicatorFactory control = make_own_communicator);

/// For a rank that knows that it cannot use the data plane that was chosen: all ranks of the job
/// fail with its `problem`, where the others' factories agree() about something first.
CommunicatorFactory make_failing_factory(std::string problem,
                                         CommunicatorFactory control = make_own_communicator);

// ---- for those who write a factory --------------------------------------------------------------

/// All members attempt something that may throw. If one fails, all throw the same text, as
/// Error(kInvalidArgument), and nobody before all know it.
void agree(Communicator& control, const CommunicatorSpec& spec,
           const std::function<void()>& attempt);

}  // namespace hvdtune
