#include "collective/shm/shm_registered.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "collective/shm/shm_barrier.h"
#include "engine_job.h"
#include "reference.h"
#include "threads.h"
#include "transport/arena/peer_heaps.h"
#include "transport/arena/shared_heap.h"

namespace hvdtune::testing::test_shm_registered {
namespace {

/// One rank's side of the heap and of the reductions, over one arena and one heap file.
struct Place {
  std::shared_ptr<SharedHeap> heap;
  std::unique_ptr<ShmRegistered> registered;
};

class World {
 public:
  /// `helpers`: of each rank; they take part in everything, however small.
  explicit World(int ranks, int helpers = 0)
      : arena_(Arena::create(ranks)), file_(HeapFile::create(ranks)) {
    const HelperOptions options{helpers, {20 * kMicrosecond, true}, 64, 0};
    CHECK(file_ != nullptr);
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      // Each maps the file for itself, as processes do.
      auto file = HeapFile::attach(file_->fd(), ranks);
      places_.push_back({std::make_shared<SharedHeap>(file, rank),
                         std::make_unique<ShmRegistered>(arena_, file, members, rank, 0, Patience{},
                                                         std::make_shared<HelperPool>(options))});
    }
  }

  void run(const std::function<void(int, Place&)>& body) {
    run_threads(static_cast<int>(places_.size()), [&](int rank) {
      try {
        body(rank, places_[static_cast<std::size_t>(rank)]);
      } catch (...) {
        arena_->abort("a test failed");  // or the other ranks wait for this one for ever
        throw;
      }
    });
  }

  Arena& arena() { return *arena_; }
  HeapFile& file() { return *file_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<HeapFile> file_;
  std::vector<Place> places_;
};

/// Tensors of random lengths in an order of this rank's own memory, and where they begin.
struct Layout {
  std::shared_ptr<SharedBlock> block;
  std::vector<RegisteredTensor> tensors;
};

/// Puts `lengths` (elements) into a block: neighbours in order, or with gaps that differ by rank.
Layout lay_out(World& world, Place& place, int rank, const std::vector<std::size_t>& lengths,
               std::size_t element, bool gaps) {
  std::size_t bytes = 0;
  for (const std::size_t length : lengths) bytes += length * element + 512;
  Layout layout{place.heap->allocate(bytes), {}};
  std::byte* at = layout.block->data();
  for (std::size_t t = 0; t < lengths.size(); ++t) {
    if (gaps) at += 64 * ((static_cast<std::size_t>(rank) + t) % 5);
    const auto slot = static_cast<std::uint32_t>(t);
    layout.tensors.push_back({slot, 0, 1, at, lengths[t] * element});
    world.file().place(rank, slot).store(*place.heap->offset_of(at, lengths[t] * element));
    at += lengths[t] * element;
  }
  return layout;
}

void check_sum(int ranks, DType dtype, bool gaps, double prescale, double postscale,
               int helpers = 0) {
  const std::size_t element = dtype_size(dtype);
  const std::vector<std::size_t> lengths = {1, 3, 70001, 0, 17, 4096, 33333};
  World world(ranks, helpers);
  // Not under way until all have published where their tensors are: the engine's part elsewhere.
  BarrierCell& gate = world.arena().barrier(0);
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<std::vector<Bytes>> inputs;
    for (std::size_t t = 0; t < lengths.size(); ++t) {
      inputs.push_back(random_inputs(dtype, ranks, lengths[t], 100 * round + t));
    }
    world.run([&](int rank, Place& place) {
      ShmBarrier barrier(world.arena(), gate, ranks, rank, {});
      Layout layout = lay_out(world, place, rank, lengths, element, gaps);
      for (std::size_t t = 0; t < lengths.size(); ++t) {
        const Bytes& mine = inputs[t][static_cast<std::size_t>(rank)];
        if (!mine.empty()) std::memcpy(layout.tensors[t].data, mine.data(), mine.size());
      }
      barrier.arrive();
      barrier.wait();
      place.registered->tune({.writing = static_cast<Writing>(round)});  // each once
      place.registered->allreduce({layout.tensors, dtype, ReduceOp::kSum, prescale, postscale});
      for (std::size_t t = 0; t < lengths.size(); ++t) {
        const Bytes expected =
            expected_reduction(dtype, ReduceOp::kSum, inputs[t], prescale, postscale);
        CHECK_MSG(first_difference(dtype, layout.tensors[t].data, expected.data(), lengths[t]) < 0,
                  dtype_name(dtype) << " tensor " << t << " on rank " << rank);
      }
      // Nobody frees what another still looks at: here, the results.
      barrier.arrive();
      barrier.wait();
    });
  }
}

// ---- reducing -----------------------------------------------------------------------------------

TEST(neighbours_are_reduced_in_place) {
  for (const int ranks : {1, 2, 5}) check_sum(ranks, DType::kFloat32, false, 1.0, 1.0);
}

TEST(every_rank_may_have_them_elsewhere) {
  check_sum(3, DType::kFloat32, true, 1.0, 0.5);
  check_sum(2, DType::kBfloat16, true, 1.0, 0.5);
}

TEST(scaled_values_are_rounded_as_elsewhere) {
  check_sum(3, DType::kFloat16, false, 0.3, 0.7);
  check_sum(2, DType::kInt32, true, 0.5, 3.0);
}

TEST(helpers_reduce_pieces_of_blocks) {
  check_sum(2, DType::kFloat32, false, 1.0, 0.5, 2);
  check_sum(3, DType::kFloat16, true, 0.3, 0.7, 1);
}

TEST(a_late_member_finds_everything_done) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 50000;
  World world(kRanks);
  std::vector<std::shared_ptr<SharedBlock>> blocks(kRanks);
  std::vector<std::vector<RegisteredTensor>> tensors(kRanks);
  world.run([&](int rank, Place& place) {
    const auto at = static_cast<std::size_t>(rank);
    blocks[at] = place.heap->allocate(kCount * sizeof(float));
    auto* data = reinterpret_cast<float*>(blocks[at]->data());
    for (std::size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(rank + 1);
    world.file().place(rank, 7).store(blocks[at]->offset());
    tensors[at] = {{7, 0, 1, blocks[at]->data(), kCount * sizeof(float)}};
  });
  std::atomic<int> ended{0};
  world.run([&](int rank, Place& place) {
    const auto& mine = tensors[static_cast<std::size_t>(rank)];
    // The last one comes when the others are through two reductions.
    while (rank == kRanks - 1 && ended.load() < kRanks - 1) std::this_thread::yield();
    for (int round = 0; round < 2; ++round) {
      place.registered->allreduce({mine, DType::kFloat32, ReduceOp::kSum, 1.0, 1.0 / kRanks});
    }
    ended.fetch_add(1);
    const auto* data = reinterpret_cast<const float*>(mine.front().data);
    CHECK(data[0] == 2.0F && data[kCount - 1] == 2.0F);
  });
}

TEST(an_abort_ends_the_wait_for_a_member_that_holds_a_block) {
  World world(2);
  run_threads(2, [&](int rank) {
    if (rank == 1) {
      // Takes a block and never finishes it.
      world.file().work_cell(0).members[1].value.store(1);
      world.file().work_cell(0).claim.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.arena().abort("rank 1 died");
      return;
    }
    while (world.file().work_cell(0).claim.load() == 0) std::this_thread::yield();
    auto file = HeapFile::attach(world.file().fd(), 2);
    auto heap = std::make_shared<SharedHeap>(file, 0);
    const auto block = heap->allocate(4096);
    ShmRegistered registered(Arena::attach(world.arena().fd(), 2), file, {0, 1}, 0, 0, {});
    std::vector<int> missing;
    registered.report_absence(1, [&](const std::vector<int>& ranks, Nanos) { missing = ranks; });
    const std::vector<RegisteredTensor> tensors = {{0, 0, 1, block->data(), 4096}};
    CHECK_THROWS(registered.allreduce({tensors, DType::kFloat32, ReduceOp::kSum}), Error);
    CHECK_EQ(missing.size(), std::size_t{1});
    CHECK_EQ(missing.front(), 1);
  });
}

// ---- memory -------------------------------------------------------------------------------------

TEST(blocks_are_found_by_their_addresses) {
  const auto file = HeapFile::create(2);
  const auto heap = std::make_shared<SharedHeap>(file, 1);
  CHECK(heap->empty());
  auto first = heap->allocate(100);
  auto second = heap->allocate(3 << 20);
  CHECK_EQ(*heap->offset_of(first->data() + 4, 96), first->offset() + 4);
  CHECK(!heap->offset_of(first->data() + 4, 5000));
  int elsewhere = 0;
  CHECK(!heap->offset_of(&elsewhere, sizeof(elsewhere)));
  CHECK_EQ(*heap->offset_of(second->data() + (3 << 20) - 1, 1), second->offset() + (3 << 20) - 1);
  const std::uint64_t freed = first->offset();
  std::memset(first->data(), 1, 100);
  first.reset();
  // Used again, and zero again.
  first = heap->allocate(10);
  CHECK_EQ(first->offset(), freed);
  CHECK(first->data()[0] == std::byte{0});
  first.reset();
  second.reset();
  CHECK(heap->empty());
  CHECK_EQ(heap->allocate(5 << 20)->offset(), std::uint64_t{0});
  CHECK_THROWS(heap->allocate(file->region_bytes() + 1), Error);
}

TEST(peers_see_a_block_and_its_end) {
  const auto file = HeapFile::create(2);
  const auto heap = std::make_shared<SharedHeap>(file, 1);
  PeerHeaps peers(HeapFile::attach(file->fd(), 2));
  auto small = heap->allocate(64);
  auto large = heap->allocate(100 << 20);
  small->data()[3] = std::byte{7};
  large->data()[(100 << 20) - 1] = std::byte{9};
  peers.reach(1, small->offset(), 64);
  peers.reach(1, large->offset(), 100 << 20);
  CHECK(peers.at(1, small->offset())[3] == std::byte{7});
  CHECK(peers.at(1, large->offset())[(100 << 20) - 1] == std::byte{9});
  const std::uint64_t gone = large->offset();
  large.reset();
  CHECK(peers.at(1, gone)[(100 << 20) - 1] == std::byte{0});
  CHECK_THROWS(peers.reach(1, file->region_bytes() - 8, 64), Error);
  CHECK_THROWS(peers.reach(0, UINT64_MAX - 8, 64), Error);
}

// ---- through the engine -------------------------------------------------------------------------

Submission sum_of(const std::string& name, float* data, std::size_t count) {
  Submission submission;
  submission.request.name = name;
  submission.request.tensors = {{DType::kFloat32, {static_cast<std::int64_t>(count)}}};
  submission.memory = {{data, data}};
  return submission;
}

/// Reduces `data` (all elements `rank + 1` at first) and checks the sum.
void check_round(Engine& engine, int rank, int ranks, const std::string& name, float* data,
                 std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(rank + 1 + i % 7);
  finish(engine, engine.submit(sum_of(name, data, count)));
  for (std::size_t i = 0; i < count; ++i) {
    const auto expected = static_cast<float>(ranks * (ranks + 1) / 2 + ranks * (i % 7));
    CHECK_MSG(data[i] == expected, name << "[" << i << "] is " << data[i]);
  }
}

TEST(ranks_may_disagree_about_registering) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 20000;
  run_job(kRanks, [](int rank, Engine& engine) {
    auto block = engine.allocate_shared(2 * kCount * sizeof(float));
    std::vector<float> ordinary(kCount);
    auto* shared = reinterpret_cast<float*>(block->data());
    for (int round = 0; round < 12; ++round) {
      // All; all but one; none; and the tensor moves.
      const bool here = round % 3 == 0 || (round % 3 == 1 && rank != 1);
      float* data = here ? shared + (round % 2 == 0 ? 0 : kCount) : ordinary.data();
      check_round(engine, rank, kRanks, "t", data, kCount);
    }
    // A new block, before the old one goes.
    auto other = engine.allocate_shared(kCount * sizeof(float));
    block = nullptr;
    for (int round = 0; round < 3; ++round) {
      check_round(engine, rank, kRanks, "t", reinterpret_cast<float*>(other->data()), kCount);
    }
  });
}

TEST(registered_and_other_tensors_in_flight_together) {
  constexpr int kRanks = 4;
  constexpr std::size_t kTensors = 12;
  constexpr std::size_t kCount = 3001;
  // Few slots: they are evicted all the time.
  for (const std::uint32_t slots : {1024U, 8U}) {
    const auto body = [](int rank, Engine& engine) {
      auto block = engine.allocate_shared(kTensors * kCount * sizeof(float));
      auto* shared = reinterpret_cast<float*>(block->data());
      std::vector<float> ordinary(kTensors * kCount);
      for (int round = 0; round < 6; ++round) {
        std::vector<std::int64_t> handles;
        for (std::size_t t = 0; t < kTensors; ++t) {
          float* data = (t % 3 == 2 ? ordinary.data() : shared) + t * kCount;
          std::fill_n(data, kCount, static_cast<float>(rank));
          handles.push_back(engine.submit(sum_of("t" + std::to_string(t), data, kCount)));
        }
        for (const std::int64_t handle : handles) finish(engine, handle);
        for (std::size_t t = 0; t < kTensors; ++t) {
          const float* data = (t % 3 == 2 ? ordinary.data() : shared) + t * kCount;
          CHECK(data[0] == 6.0F && data[kCount - 1] == 6.0F);
        }
      }
    };
    run_job(kRanks, body,
            [slots](EngineOptions& options) { options.coordinator.cache_capacity = slots; });
  }
}

TEST(a_registered_group) {
  constexpr int kRanks = 2;
  run_job(kRanks, [](int rank, Engine& engine) {
    auto block = engine.allocate_shared(1 << 20);
    auto* shared = reinterpret_cast<float*>(block->data());
    for (int round = 0; round < 4; ++round) {
      Submission group;
      group.request.name = "group";
      group.request.grouped = true;
      // More of them in later rounds: another description, and another list of places.
      const std::size_t tensors = round < 2 ? 3 : 700;
      for (std::size_t t = 0; t < tensors; ++t) {
        float* data = shared + t * 100 + static_cast<std::size_t>(rank) * 4;
        std::fill_n(data, 50, static_cast<float>(rank + 1));
        group.request.tensors.push_back({DType::kFloat32, {50}});
        group.memory.push_back({data, data});
      }
      finish(engine, engine.submit(std::move(group)));
      for (std::size_t t = 0; t < tensors; ++t) {
        const float* data = shared + t * 100 + static_cast<std::size_t>(rank) * 4;
        CHECK(data[0] == 3.0F && data[49] == 3.0F);
      }
    }
  });
}

TEST(a_tensor_that_is_in_a_registered_group_twice_is_reduced_once) {
  run_job(2, [](int rank, Engine& engine) {
    auto block = engine.allocate_shared(1 << 12);
    auto* data = reinterpret_cast<float*>(block->data());
    for (int round = 0; round < 4; ++round) {
      std::fill_n(data, 50, static_cast<float>(rank + 1));
      Submission group;
      group.request.name = "group";
      group.request.grouped = true;
      for (int place = 0; place < 2; ++place) {
        group.request.tensors.push_back({DType::kFloat32, {50}});
        group.memory.push_back({data, data});
      }
      finish(engine, engine.submit(std::move(group)));
      CHECK(data[0] == 3.0F && data[49] == 3.0F);
    }
  });
}

TEST(process_sets_that_come_and_go) {
  constexpr int kRanks = 3;
  run_job(kRanks, [](int rank, Engine& engine) {
    auto block = engine.allocate_shared(1 << 16);
    auto* data = reinterpret_cast<float*>(block->data());
    for (int round = 0; round < 4; ++round) {
      const OperationPtr added = finish(engine, engine.add_process_set({0, 2}));
      const auto set = static_cast<std::uint32_t>(added->numbers.front());
      for (int step = 0; step < 3 && rank != 1; ++step) {
        std::fill_n(data, 1000, 1.0F);
        Submission submission = sum_of("t", data, 1000);
        submission.request.process_set = set;
        finish(engine, engine.submit(std::move(submission)));
        CHECK(data[0] == 2.0F && data[999] == 2.0F);
      }
      finish(engine, engine.remove_process_set(set));
    }
  });
}

TEST(a_block_outlives_the_engine) {
  std::vector<std::shared_ptr<SharedBlock>> blocks(2);
  run_job(2, [&](int rank, Engine& engine) {
    blocks[static_cast<std::size_t>(rank)] = engine.allocate_shared(4096);
  });
  for (const auto& block : blocks) std::memset(block->data(), 1, block->bytes());
}

TEST(one_rank_shares_with_nobody) {
  run_job(1, [](int, Engine& engine) { CHECK_THROWS(engine.allocate_shared(64), Error); });
}

}  // namespace
}  // namespace hvdtune::testing::test_shm_registered
