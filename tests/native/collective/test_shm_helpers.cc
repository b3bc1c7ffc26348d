// What every data plane must pass, with helpers that take part in everything, however small; and
// that the bits of a result do not depend on their number.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "collective/adasum.h"
#include "collective/shm/shm_communicator.h"
#include "communicator_conformance.h"
#include "reference.h"
#include "shm_world.h"
#include "threads.h"
#include "transport/arena/arena.h"

namespace hvdtune::testing::test_shm_helpers {

HelperOptions eager(int threads) {
  return {.threads = threads,
          .patience = {20 * kMicrosecond, true},
          .least_piece = 64,
          .least_message = 0};
}

struct HelpedWorld : World {
  explicit HelpedWorld(int ranks) : World(ranks, eager(2)) {}
};

CONFORMS(HelpedWorld);

namespace {

/// What rank 0 has of an operation with `threads` helpers on each rank.
using Operation = std::function<void(Communicator& communicator, SegmentList& data)>;

Bytes result_with(int threads, int ranks, const std::vector<Bytes>& inputs,
                  const Operation& operation) {
  World world(ranks, eager(threads));
  Bytes result;
  world.run([&](int rank, ShmCommunicator& communicator) {
    communicator.tune({.chunk_size = 20000, .one_shot_limit = 1});
    Bytes mine = inputs[static_cast<std::size_t>(rank)];
    SegmentList data;
    // Tensors of several lengths, so that pieces begin anywhere in one.
    const std::size_t cut = mine.size() / 3 / 8 * 8;
    data.add(mine.data(), cut);
    data.add(mine.data() + cut, mine.size() - cut);
    operation(communicator, data);
    if (rank == 0) result = mine;
  });
  return result;
}

}  // namespace

TEST(the_number_of_helpers_does_not_change_a_bit) {
  const int ranks = 3;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16,
                            DType::kInt64, DType::kUint8}) {
    const auto inputs = random_inputs(dtype, ranks, 33333, 11);
    for (const double prescale : {1.0, 0.3}) {
      const auto allreduce = [&](Communicator& communicator, SegmentList& data) {
        communicator.allreduce({data, data, dtype, ReduceOp::kSum, prescale, 1.0 / 3});
      };
      const Bytes alone = result_with(0, ranks, inputs, allreduce);
      for (const int threads : {1, 2, 3}) {
        CHECK(result_with(threads, ranks, inputs, allreduce) == alone);
      }
    }
  }
}

TEST(adasum_has_the_same_bits_with_helpers) {
  const int ranks = 4;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const auto inputs = random_inputs(dtype, ranks, 20000, 12);
    const auto combine = [&](Communicator& communicator, SegmentList& data) {
      const std::vector<std::size_t> elements{data.bytes() / dtype_size(dtype)};
      adasum(communicator, {data, data, elements, dtype, 1.0, 1.0});
    };
    const Bytes alone = result_with(0, ranks, inputs, combine);
    for (const int threads : {1, 3}) CHECK(result_with(threads, ranks, inputs, combine) == alone);
  }
}

}  // namespace hvdtune::testing::test_shm_helpers
