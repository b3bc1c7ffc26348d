// Operations that are submitted again by what the engine knows of them.
#include <array>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "engine_job.h"

namespace hvdtune::testing::test_again {

namespace {

constexpr std::size_t kTensors = 40;  // more than are prefetched at a time

/// The float32 tensors of one rank, all summed up together.
class Gradients {
 public:
  Gradients(Engine& engine, int rank, std::uint32_t set = 0)
      : engine_(engine), rank_(rank), set_(set) {
    for (std::size_t i = 0; i < kTensors; ++i) data_.emplace_back(1 + i % 7);
    known_.resize(kTensors);
  }

  /// Submits all, those that are known together; how many were.
  std::size_t submit() {
    for (std::size_t i = 0; i < kTensors; ++i) fill(i);
    memory_.clear();
    for (auto& tensor : data_) memory_.push_back({tensor.data(), tensor.data()});
    handles_.clear();
    engine_.submit_again(known_, memory_, handles_);
    const std::size_t again = handles_.size();
    for (std::size_t i = again; i < kTensors; ++i) {
      handles_.push_back(submit_one(i));
      known_[i] = engine_.known(handles_.back());
    }
    return again;
  }

  /// Waits for all and looks at the sums over `ranks`.
  void finish(const std::vector<int>& ranks) {
    for (const std::int64_t handle : handles_)
      CHECK(engine_.wait(handle, monotonic_now() + kPatience));
    engine_.retire(handles_);
    for (std::size_t i = 0; i < kTensors; ++i) {
      CHECK_EQ(handles_[i], 0);
      float sum = 0;
      for (const int rank : ranks) sum += value(rank, i);
      for (const float element : data_[i]) CHECK_EQ(element, sum);
    }
    ++round_;
  }

  /// Between two ranks.
  void become_known() {
    for (int round = 0; round < 3; ++round) {
      submit();
      finish({0, 1});
    }
  }

  std::int64_t submit_one(std::size_t i) {
    const std::string name = "gradient." + std::to_string(i);
    const std::array<std::int64_t, 1> shape = {static_cast<std::int64_t>(data_[i].size())};
    TensorOperation wanted;
    wanted.name = name;
    wanted.process_set = set_;
    wanted.shape = shape;
    wanted.memory = {data_[i].data(), data_[i].data()};
    return engine_.submit(wanted);
  }

  [[nodiscard]] std::vector<KnownOperation>& known() { return known_; }
  [[nodiscard]] std::vector<TensorMemory>& memory() { return memory_; }
  [[nodiscard]] std::vector<float>& data(std::size_t i) { return data_[i]; }

 private:
  [[nodiscard]] float value(int rank, std::size_t i) const {
    return static_cast<float>((round_ + 1) * (rank + 1) + static_cast<int>(i));
  }
  void fill(std::size_t i) { std::fill(data_[i].begin(), data_[i].end(), value(rank_, i)); }

  Engine& engine_;
  int rank_;
  std::uint32_t set_;
  int round_ = 0;
  std::vector<std::vector<float>> data_;
  std::vector<KnownOperation> known_;
  std::vector<TensorMemory> memory_;
  std::vector<std::int64_t> handles_;
};

}  // namespace

TEST(known_tensors_are_submitted_together_and_reduced_like_any) {
  run_job(3, [](int rank, Engine& engine) {
    Gradients gradients(engine, rank);
    for (int round = 0; round < 20; ++round) {
      const std::size_t again = gradients.submit();
      // The first time, and the second, by which all ranks have agreed, the engine knows nothing
      // that could be submitted again.
      CHECK_EQ(again, round < 2 ? 0 : kTensors);
      gradients.finish({0, 1, 2});
    }
  });
}

TEST(some_ranks_may_submit_one_by_one_what_others_submit_together) {
  run_job(2, [](int rank, Engine& engine) {
    Gradients gradients(engine, rank);
    for (int round = 0; round < 10; ++round) {
      if (rank == 1 && round % 2 == 0) gradients.known().assign(kTensors, {});
      gradients.submit();
      gradients.finish({0, 1});
    }
  });
}

TEST(what_is_in_flight_is_not_submitted_again) {
  run_job(2, [](int rank, Engine& engine) {
    Gradients gradients(engine, rank);
    gradients.become_known();
    const std::size_t busy = 11;
    const std::int64_t first = gradients.submit_one(busy);
    std::vector<std::int64_t> handles;
    engine.submit_again(gradients.known(), gradients.memory(), handles);
    CHECK_EQ(handles.size(), busy);  // in front of it
    handles.push_back(first);
    for (const std::int64_t handle : handles)
      CHECK(engine.wait(handle, monotonic_now() + kPatience));
    engine.retire(handles);
    for (const std::int64_t handle : handles) CHECK_EQ(handle, 0);
  });
}

TEST(what_has_another_shape_or_lost_its_slot_is_not_known_any_more) {
  run_job(
      2,
      [](int rank, Engine& engine) {
        Gradients gradients(engine, rank);
        gradients.become_known();
        const std::vector<KnownOperation> before = gradients.known();
        gradients.data(5).resize(20);  // all ranks agree on another description
        gradients.known()[5] = {};
        CHECK_EQ(gradients.submit(), 5U);
        gradients.finish({0, 1});
        std::vector<std::int64_t> handles;
        engine.submit_again(std::span(before).subspan(5, 1), std::span(gradients.memory()).first(1),
                            handles);
        CHECK(handles.empty());
        // More names than there are slots: the oldest lose theirs.
        std::vector<float> other(1);
        for (std::size_t i = 0; i < kTensors + 8; ++i) {
          const std::int64_t handle =
              engine.submit(in_place(OpKind::kAllreduce, "other." + std::to_string(i), other));
          CHECK(engine.wait(handle, monotonic_now() + kPatience));
          engine.take(handle);
        }
        engine.submit_again(std::span(before).first(1), std::span(gradients.memory()).first(1),
                            handles);
        CHECK(handles.empty());
        gradients.submit();
        gradients.finish({0, 1});
      },
      [](EngineOptions& options) { options.coordinator.cache_capacity = kTensors + 4; });
}

TEST(knowledge_of_an_engine_that_is_gone_fits_no_other) {
  std::array<std::vector<KnownOperation>, 2> kept;
  for (int job = 0; job < 2; ++job) {
    run_job(2, [&](int rank, Engine& engine) {
      Gradients gradients(engine, rank);
      gradients.become_known();
      auto& mine = kept[static_cast<std::size_t>(rank)];
      if (job == 1) {
        // The same slots, of tensors that look the same.
        std::vector<std::int64_t> handles;
        engine.submit_again(mine, gradients.memory(), handles);
        CHECK(handles.empty());
      }
      mine = gradients.known();
    });
  }
}

TEST(a_job_that_has_ended_takes_nothing_again) {
  run_job(2, [](int rank, Engine& engine) {
    Gradients gradients(engine, rank);
    gradients.become_known();
    engine.shutdown();
    std::vector<std::int64_t> handles;
    engine.submit_again(gradients.known(), gradients.memory(), handles);
    CHECK(handles.empty());
    CHECK_THROWS_WITH(gradients.submit_one(0), Error, "shut down");
  });
}

TEST(a_rank_that_has_joined_submits_nothing_again) {
  std::latch tried(1);
  run_job(2, [&tried](int rank, Engine& engine) {
    Gradients gradients(engine, rank);
    gradients.become_known();
    if (rank == 1) tried.wait();  // until then not all have joined
    const std::int64_t join = engine.join();
    if (rank == 0) {
      std::vector<std::int64_t> handles;
      CHECK_THROWS_WITH(engine.submit_again(gradients.known(), gradients.memory(), handles), Error,
                        "has joined");
      tried.count_down();
    }
    CHECK(engine.wait(join, monotonic_now() + kPatience));
    engine.take(join);
  });
}

TEST(a_handle_that_failed_or_is_under_way_is_not_retired) {
  run_job(2, [](int rank, Engine& engine) {
    std::vector<float> data(rank == 0 ? 3 : 4, 1.0F);
    std::vector<std::int64_t> handles = {
        engine.submit(in_place(OpKind::kAllreduce, "differs", data)), -1, 0, 9999};
    CHECK(engine.wait(handles[0], monotonic_now() + kPatience));
    const std::vector<std::int64_t> before = handles;
    engine.retire(handles);
    CHECK(handles == before);
    CHECK(!engine.take(handles[0])->status.ok());
  });
}

}  // namespace hvdtune::testing::test_again
