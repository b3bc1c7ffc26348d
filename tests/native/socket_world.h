#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "collective/sockets/socket_communicator.h"
#include "threads.h"
#include "transport/meeting/rendezvous.h"

namespace hvdtune::testing {

/// What rank `rank` of `ranks` brings; rank 0 listens on the loopback interface already.
inline RendezvousOptions loopback_options(int rank, int ranks,
                                          const std::shared_ptr<TcpListener>& listener) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = ranks;
  options.host = listener->addresses().front().host();
  options.port = listener->addresses().front().port();
  options.secret = "the secret of this job";
  options.hostname = "host" + std::to_string(rank);
  options.version = "1.2.3";
  // Patient with a process that is stopped for a while.
  options.timeout = 600 * kSecond;
  options.agreement = "HOROVOD_A=1\nHOROVOD_B=2\n";
  if (rank == 0) options.listener = listener;
  return options;
}

inline std::shared_ptr<TcpListener> loopback_listener(const std::string& host = "127.0.0.1") {
  return std::make_shared<TcpListener>(std::vector{TcpAddress::of_digits(host, 0)},
                                       "the secret of this job");
}

/// All ranks as threads that meet on the loopback interface.
inline std::vector<std::shared_ptr<Mesh>> loopback_mesh(
    int ranks, const std::function<void(RendezvousOptions&)>& change = [](RendezvousOptions&) {}) {
  const auto listener = loopback_listener();
  std::vector<std::shared_ptr<Mesh>> meshes(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, ranks, listener);
    change(options);
    meshes[static_cast<std::size_t>(rank)] = form_mesh(options);
  });
  return meshes;
}

/// One communicator a rank over sockets, each used from a thread of its own.
class SocketWorld {
 public:
  explicit SocketWorld(int ranks, Patience patience = {})
      : meshes_(loopback_mesh(ranks)), crew_(ranks) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(
          std::make_unique<SocketCommunicator>(mesh(rank), members, rank, 0, patience));
    }
  }

  /// body(rank, communicator) on all ranks at once.
  void run(const std::function<void(int, SocketCommunicator&)>& body) {
    crew_.run([&](int rank) {
      try {
        body(rank, *ranks_[static_cast<std::size_t>(rank)]);
      } catch (const Failure& failure) {
        mesh(rank)->abort("a test failed");  // or the other ranks wait for this one for ever
        throw;
      }
    });
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  const std::shared_ptr<Mesh>& mesh(int rank) { return meshes_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::shared_ptr<Mesh>> meshes_;
  std::vector<std::unique_ptr<SocketCommunicator>> ranks_;
  Crew crew_;
};

}  // namespace hvdtune::testing
