#include "collective/shm/shm_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "communicator_conformance.h"
#include "reference.h"
#include "shm_world.h"
#include "threads.h"
#include "transport/arena/arena.h"

namespace hvdtune::testing::test_shm_communicator {

CONFORMS(World);

/// Whatever the members find out about their caches, each for itself.
TEST(ways_of_writing_give_the_same_result) {
  for (const int ranks : {2, 3, 8}) {
    Conforming<World> world(ranks);
    for (const std::vector<Writing>& kinds :
         {std::vector{Writing::kStreamed}, std::vector{Writing::kStreamed, Writing::kCached}}) {
      world.run([&](int rank, Communicator& communicator) {
        const Writing writing = kinds[static_cast<std::size_t>(rank) % kinds.size()];
        communicator.tune({.chunk_size = 100000, .one_shot_limit = 8192, .writing = writing});
      });
      for (const std::size_t count : {1, 100, 1500, 5000, 70001}) {
        check_allreduce(world, DType::kFloat32, ReduceOp::kSum, count, {});
        check_allreduce(world, DType::kFloat32, ReduceOp::kMax, count, {0.5, 1.0});
        check_allreduce(world, DType::kFloat16, ReduceOp::kSum, count, {0.5, 0.5});
        check_allreduce(world, DType::kUint8, ReduceOp::kSum, count, {1.0, 1.0});
      }
    }
  }
}

TEST(pieces_that_share_memory) {
  Bytes data(100);
  SegmentList list;
  list.add(data.data() + 50, 50);
  CHECK(!list.overlaps());
  list.add(data.data(), 50);
  CHECK(!list.overlaps());
  list.add(data.data() + 49, 1);
  CHECK(list.overlaps());
}

TEST(a_copy_copies_every_byte_and_no_other) {
  Bytes from(20000);
  std::mt19937_64 generator(1);
  fill_random(DType::kUint8, from.data(), from.size(), generator);
  for (const CopyKind kind : {CopyKind::kCached, CopyKind::kStreamed}) {
    for (const std::size_t shift : {0, 1, 63, 64}) {
      for (const std::size_t bytes : {0, 1, 511, 2047, 2048, 2049, 4095, 4096, 4097, 12345}) {
        Bytes to(20000, char{0x2B});
        copy_bytes(to.data() + shift, from.data() + 5, bytes, kind);
        Bytes expected(20000, char{0x2B});
        std::memcpy(expected.data() + shift, from.data() + 5, bytes);
        check_equal(DType::kUint8, to, expected, "copy");
      }
    }
  }
}

TEST(overlapping_process_sets_share_the_windows) {
  const std::vector<std::vector<int>> sets{{0, 1, 2, 3}, {0, 2}, {1, 2, 3}};
  const auto arena = Arena::create(4);
  run_threads(4, [&](int rank) {
    std::vector<std::unique_ptr<ShmCommunicator>> mine;
    for (std::size_t set = 0; set < sets.size(); ++set) {
      const auto found = std::find(sets[set].begin(), sets[set].end(), rank);
      mine.push_back(nullptr);
      if (found == sets[set].end()) continue;
      mine.back() = std::make_unique<ShmCommunicator>(arena, sets[set],
                                                      static_cast<int>(found - sets[set].begin()),
                                                      static_cast<int>(set), Patience{});
      mine.back()->set_window_shared(true);
      mine.back()->tune({4096});
    }
    std::mt19937_64 shared(10);
    for (int round = 0; round < 400; ++round) {
      const std::size_t set = shared() % sets.size();
      const std::size_t count = 1 + shared() % 5000;
      if (!mine[set]) continue;
      std::int64_t sum = 0;
      for (const int member : sets[set]) sum += member + round;
      std::vector<std::int64_t> data(count, rank + round);
      SegmentList list;
      list.add(data.data(), count * sizeof(std::int64_t));
      mine[set]->allreduce({list, list, DType::kInt64, ReduceOp::kSum});
      for (const std::int64_t value : data) {
        if (value == sum) continue;
        arena->abort("a test failed");
        CHECK_EQ(value, sum);
      }
    }
  });
}

TEST(an_abort_ends_every_wait) {
  constexpr Nanos kAwake = 20 * kMicrosecond;
  for (const Patience patience : {Patience{}, Patience{kAwake, false}, Patience{kAwake, true}}) {
    const auto arena = Arena::create(3);
    run_threads(3, [&](int rank) {
      ShmCommunicator communicator(arena, {0, 1, 2}, rank, 0, patience);
      std::vector<float> data(100000, 1.0F);
      SegmentList list;
      list.add(data.data(), data.size() * sizeof(float));
      const auto allreduce = [&] {
        communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
      };
      if (rank == 2) {
        allreduce();
        arena->abort("rank 2 died");
      } else {
        // The notice may come as early as in the first one.
        CHECK_THROWS_WITH((allreduce(), allreduce()), Error, "rank 2 died");
      }
    });
  }
}

}  // namespace hvdtune::testing::test_shm_communicator
