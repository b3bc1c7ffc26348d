#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "collective/shm_communicator.h"
#include "reference.h"
#include "threads.h"
#include "transport/arena.h"

namespace hvdtune::testing {

/// One communicator a rank over one arena, each used from a thread of its own.
class World {
 public:
  explicit World(int ranks) : arena_(Arena::create(ranks)) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<ShmCommunicator>(arena_, members, rank, 0, Patience{}));
    }
  }

  void run(const std::function<void(int, ShmCommunicator&)>& body) {
    run_threads(static_cast<int>(ranks_.size()), [&](int rank) {
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
};

/// `data` in several pieces, cut between elements.
inline SegmentList pieces(Bytes& data, std::size_t element, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  SegmentList list;
  std::size_t done = 0;
  while (done < data.size()) {
    const std::size_t left = (data.size() - done) / element;
    const std::size_t piece = (1 + generator() % left) * element;
    list.add(data.data() + done, piece);
    done += piece;
  }
  return list;
}

inline void check_equal(DType dtype, const Bytes& got, const Bytes& expected,
                        const std::string& what) {
  CHECK_EQ(got.size(), expected.size());
  const auto at =
      first_difference(dtype, got.data(), expected.data(), expected.size() / dtype_size(dtype));
  CHECK_MSG(at < 0, what << " " << dtype_name(dtype) << ": element " << at << " of "
                         << expected.size() / dtype_size(dtype) << " is "
                         << show_element(dtype, got.data(), at) << ", not "
                         << show_element(dtype, expected.data(), at));
}

}  // namespace hvdtune::testing
