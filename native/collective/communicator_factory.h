#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collective/communicator.h"
#include "transport/bootstrap.h"

namespace hvdtune {

/// What a data plane needs to know to connect the members of one process set.
struct CommunicatorSpec {
  const HostSession& session;
  const std::vector<int>& members;  ///< global ranks, ascending
  int index;                        ///< of this rank among them
  int number;                       ///< of the process set: the same on all members
  bool only_one;      ///< no rank belongs to another communicator as well, until share_buffers()
  Patience patience;  ///< of a wait for other members
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

}  // namespace hvdtune
