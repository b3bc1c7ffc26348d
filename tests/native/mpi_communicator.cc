// Runs under an mpirun, with 8 processes: see test_native.py.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "collective/adasum.h"
#include "communicator_conformance.h"
#include "mpi_world.h"

namespace hvdtune::testing {

CONFORMS(MpiWorld);

namespace {

/// Messages that are longer than what is on its way at once.
TEST(long_messages) {
  constexpr std::size_t kCount = 3'000'001;
  MpiWorld world(3);
  world.run([&](int rank, Communicator& communicator) {
    std::vector<float> data(kCount, static_cast<float>(rank + 1));
    SegmentList list;
    list.add(data.data(), data.size() * sizeof(float));
    communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
    CHECK(std::all_of(data.begin(), data.end(), [](float value) { return value == 6; }));
    std::fill(data.begin(), data.end(), static_cast<float>(rank));
    communicator.broadcast({2, list, list});
    CHECK(std::all_of(data.begin(), data.end(), [](float value) { return value == 2; }));
  });
}

/// What MPI has taken arrives, also if the sender is not in MPI when it is called for. By TCP, and
/// without the thread that calls MPI meanwhile, this has no end: see test_native.py.
TEST(what_was_sent_arrives_while_the_sender_does_something_else) {
  constexpr int kMessages = 1500;
  MpiWorld world(2);
  std::atomic<int>& received = world.counter();
  world.run([&](int rank, Communicator& communicator) {
    std::vector<char> data(30'000, static_cast<char>(rank));
    SegmentList list;
    list.add(data.data(), data.size());
    communicator.broadcast({0, list, list});  // they are connected
    // More than the network holds is sent before the receiver begins.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    for (int message = 0; message < kMessages; ++message) communicator.broadcast({0, list, list});
    if (rank == 1) received.store(1);
    while (received.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

TEST(overlapping_process_sets_go_on_at_the_same_time) {
  const std::vector<std::vector<int>> sets{{0, 1, 2, 3}, {0, 2}, {1, 2, 3}};
  MpiWorld world(4);
  world.run([&](int rank, Communicator&) {
    std::vector<std::unique_ptr<MessageCommunicator>> mine;
    for (std::size_t set = 0; set < sets.size(); ++set) {
      const auto found = std::find(sets[set].begin(), sets[set].end(), rank);
      mine.push_back(nullptr);
      if (found == sets[set].end()) continue;
      // Made by its members alone, while the others are in the middle of something else.
      mine.back() = mpi_communicator(sets[set], static_cast<int>(found - sets[set].begin()),
                                     static_cast<int>(set) + 1);
    }
    std::mt19937_64 shared(10);
    for (int round = 0; round < 100; ++round) {
      const std::size_t set = shared() % sets.size();
      const std::size_t count = 1 + shared() % 5000;
      if (!mine[set]) continue;
      float sum = 0;
      for (const int member : sets[set]) sum += static_cast<float>(member + round);
      std::vector<float> data(count, static_cast<float>(rank + round));
      SegmentList list;
      list.add(data.data(), data.size() * sizeof(float));
      mine[set]->allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
      for (const float value : data) CHECK_EQ(value, sum);
    }
  });
}

TEST(adasum_works_on_top) {
  for (const int ranks : {1, 2, 4, 8}) {
    MpiWorld world(ranks);
    world.run([&](int, Communicator& communicator) {
      // Of equal gradients it is the average.
      std::vector<float> data(5000, 3.0F);
      SegmentList list;
      list.add(data.data(), data.size() * sizeof(float));
      const std::vector<std::size_t> elements{4000, 1000};
      adasum(communicator, {list, list, elements, DType::kFloat32, 1.0, 1.0});
      for (const float value : data) CHECK(value > 2.9999F && value < 3.0001F);
    });
  }
}

}  // namespace
}  // namespace hvdtune::testing
