// Allreduces in place, submitted as gradients are: by a description that is not copied, over and
// over, so that operations are used again.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "engine_job.h"

namespace hvdtune::testing::test_in_place {
namespace {

/// One rank's tensor. Its shape is all that is ever different from round to round.
struct Gradient {
  std::string name;
  std::array<std::int64_t, 1> shape{1};
  std::vector<float> values;

  TensorOperation fill(float value, std::int64_t elements) {
    shape = {elements};
    values.assign(static_cast<std::size_t>(elements), value);
    TensorOperation allreduce;
    allreduce.name = name;
    allreduce.shape = shape;
    allreduce.memory = {values.data(), values.data()};
    return allreduce;
  }
};

/// Waits, and forgets the operation either way.
void retire(Engine& engine, std::int64_t handle) {
  CHECK(engine.wait(handle, monotonic_now() + kPatience));
  CHECK(engine.retire(handle));
  CHECK(!engine.retire(handle));
  CHECK(engine.take(handle) == nullptr);
}

}  // namespace

TEST(gradients_are_reduced_in_every_round_whatever_changes) {
  constexpr int kRanks = 3;
  constexpr std::size_t kTensors = 40;
  for (const std::uint32_t capacity : {1024U, 16U}) {  // of slots: for all of them, and for some
    run_job(
        kRanks,
        [](int rank, Engine& engine) {
          std::vector<Gradient> gradients(kTensors);
          for (std::size_t i = 0; i < kTensors; ++i) gradients[i].name = "g" + std::to_string(i);
          std::vector<std::size_t> order(kTensors);
          std::iota(order.begin(), order.end(), 0);
          std::mt19937_64 own(static_cast<std::uint64_t>(rank));
          std::mt19937_64 common(7);
          for (int round = 0; round < 60; ++round) {
            std::vector<std::int64_t> elements(kTensors);
            for (auto& count : elements) count = common() % 20 == 0 ? 30 : 20;
            const bool blocking = common() % 8 == 0;
            if (!blocking) std::shuffle(order.begin(), order.end(), own);
            if (blocking) std::sort(order.begin(), order.end());
            std::vector<std::int64_t> handles;
            for (const std::size_t i : order) {
              const auto tensor = gradients[i].fill(
                  static_cast<float>(rank + 1) + static_cast<float>(round), elements[i]);
              handles.push_back(blocking ? engine.submit_blocking(tensor) : engine.submit(tensor));
              if (blocking) retire(engine, handles.back());
            }
            for (const std::int64_t handle : handles) {
              if (!blocking) retire(engine, handle);
            }
            const float sum = 6.0F + 3.0F * static_cast<float>(round);
            for (std::size_t i = 0; i < kTensors; ++i) {
              const std::vector<float> expected(static_cast<std::size_t>(elements[i]), sum);
              CHECK_MSG(gradients[i].values == expected, "round " << round << ", tensor " << i);
            }
          }
        },
        [&](EngineOptions& options) { options.coordinator.cache_capacity = capacity; });
  }
}

TEST(what_is_wrong_with_a_known_tensor_is_refused) {
  run_job(2, [](int rank, Engine& engine) {
    Gradient gradient{"g", {}, {}};
    for (int round = 0; round < 3; ++round) retire(engine, engine.submit(gradient.fill(1, 5)));
    std::int64_t first = 0;
    if (rank == 0) {
      first = engine.submit(gradient.fill(1, 5));
      Gradient twin{"g", {}, {}};
      CHECK_THROWS_WITH(engine.submit(twin.fill(1, 5)), Error, "same name as another tensor");
    }
    Submission barrier;
    barrier.request.kind = OpKind::kBarrier;
    barrier.request.name = "barrier";
    retire(engine, engine.submit(std::move(barrier)));
    if (rank == 1) first = engine.submit(gradient.fill(1, 5));
    retire(engine, first);
    // Unequal shapes: an error, and the name can be used again.
    const std::int64_t unequal = engine.submit(gradient.fill(1, 5 + rank));
    CHECK(engine.wait(unequal, monotonic_now() + kPatience));
    CHECK(!engine.retire(unequal));
    check_contains(engine.take(unequal)->status.text, "shape");
    retire(engine, engine.submit(gradient.fill(1, 5)));
    CHECK_EQ(gradient.values[4], 2.0F);
  });
}

TEST(results_are_not_thrown_away) {
  run_job(2, [](int, Engine& engine) {
    std::vector<float> data(4, 1.0F);
    const std::int64_t handle = engine.submit(allocating(OpKind::kAllgather, "all", data));
    CHECK(engine.wait(handle, monotonic_now() + kPatience));
    CHECK(!engine.retire(handle));
    CHECK_EQ(engine.take(handle)->outputs.at(0).bytes(), 8 * sizeof(float));
  });
}

}  // namespace hvdtune::testing::test_in_place
