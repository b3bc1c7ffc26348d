#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/hierarchy/hierarchical_communicator.h"
#include "collective/sockets/socket_communicator.h"
#include "socket_world.h"
#include "threads.h"
#include "transport/arena/arena.h"

namespace hvdtune::testing {

/// Hosts of different sizes, by rank.
inline std::vector<int> usual_hosts(int ranks) {
  const std::vector<int> most{0, 0, 1, 1, 1, 2, 2, 2};
  if (ranks == 2) return {0, 1};
  if (ranks == 5) return {0, 1, 1, 1, 2};
  return {most.begin(), most.begin() + ranks};
}

/// One hierarchical communicator a rank, each used from a thread of its own. Every "host" has an
/// arena of its own.
class HierarchicalWorld {
 public:
  /// So many ranks, on hosts of different sizes.
  explicit HierarchicalWorld(int ranks) : HierarchicalWorld(usual_hosts(ranks)) {}

  /// `hosts`: by rank.
  explicit HierarchicalWorld(std::vector<int> hosts, Hierarchy hierarchy = {true, true})
      : hosts_(std::move(hosts)),
        hierarchy_(hierarchy),
        meshes_(loopback_mesh(size())),
        crew_(size()) {
    for (const int host : hosts_) {
      if (!arenas_.contains(host)) arenas_[host] = Arena::create(size());
    }
    for (int rank = 0; rank < size(); ++rank) {
      mesh(rank).set_outside_cause([arena = arena_of(rank)] { return arena->abort_status(); });
    }
    std::vector<int> all(hosts_.size());
    std::iota(all.begin(), all.end(), 0);
    for (int rank = 0; rank < size(); ++rank) ranks_.push_back(connect(all, rank, 0));
  }

  /// What connects `members`, on the one at `index` among them. All of them make it before one of
  /// them uses it.
  std::unique_ptr<HierarchicalCommunicator> connect(const std::vector<int>& members, int index,
                                                    int number) {
    std::vector<int> hosts;
    for (const int rank : members) hosts.push_back(hosts_[static_cast<std::size_t>(rank)]);
    const int rank = members[static_cast<std::size_t>(index)];
    const auto& mesh = meshes_[static_cast<std::size_t>(rank)];
    const auto by_sockets = [&](const std::vector<int>& some, int place, int tag) {
      return std::make_unique<SocketCommunicator>(mesh, some, place, tag, Patience{});
    };
    return std::make_unique<HierarchicalCommunicator>(
        arena_of(rank), HierarchicalCommunicator::Place{members, hosts, index, number}, hierarchy_,
        by_sockets, Patience{});
  }

  /// body(rank, communicator) on all ranks at once.
  void run(const std::function<void(int, Communicator&)>& body) {
    crew_.run([&](int rank) {
      try {
        body(rank, *ranks_[static_cast<std::size_t>(rank)]);
      } catch (...) {
        // Or the other ranks wait for this one for ever.
        for (const auto& [host, arena] : arenas_) arena->abort("a test failed");
        throw;
      }
    });
  }

  [[nodiscard]] int size() const { return static_cast<int>(hosts_.size()); }
  /// By rank.
  [[nodiscard]] const std::vector<int>& hosts() const { return hosts_; }
  Mesh& mesh(int rank) { return *meshes_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<Arena>& arena_of(int rank) {
    return arenas_[hosts_[static_cast<std::size_t>(rank)]];
  }

 private:
  std::vector<int> hosts_;
  Hierarchy hierarchy_;
  std::vector<std::shared_ptr<Mesh>> meshes_;
  std::map<int, std::shared_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<HierarchicalCommunicator>> ranks_;
  Crew crew_;
};

}  // namespace hvdtune::testing
