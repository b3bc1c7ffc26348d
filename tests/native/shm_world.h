#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "collective/shm/shm_communicator.h"
#include "threads.h"
#include "transport/arena/arena.h"

namespace hvdtune::testing {

/// One communicator a rank over one arena, each used from a thread of its own.
class World {
 public:
  /// With `helpers.threads` helpers a rank.
  explicit World(int ranks, const HelperOptions& helpers = {})
      : arena_(Arena::create(ranks)), crew_(ranks) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<ShmCommunicator>(arena_, members, rank, 0, Patience{},
                                                         std::make_shared<HelperPool>(helpers)));
    }
  }

  /// body(rank, communicator) on all ranks at once.
  void run(const std::function<void(int, ShmCommunicator&)>& body) {
    crew_.run([&](int rank) {
      try {
        body(rank, *ranks_[static_cast<std::size_t>(rank)]);
      } catch (const Failure& failure) {
        arena_->abort("a test failed");  // or the other ranks wait for this one for ever
        throw;
      }
    });
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  Arena& arena() { return *arena_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<ShmCommunicator>> ranks_;
  Crew crew_;
};

}  // namespace hvdtune::testing
