// Engines with tensors on GPUs: fake ones, with and without a fake NCCL.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine_job.h"
#include "fake_gpu.h"

namespace hvdtune::testing::test_device_engine {
namespace {

/// A vector's values on a GPU.
template <class T>
class OnGpu {
 public:
  OnGpu(int device, const std::vector<T>& values)
      : device_(fake_device(device)), count_(values.size()) {
    if (count_ == 0) return;
    memory_ = DeviceMemory(device_, count_ * sizeof(T));
    put(*device_, memory_.pointer(), values);
  }

  [[nodiscard]] void* at() const { return reinterpret_cast<void*>(memory_.pointer()); }
  [[nodiscard]] std::vector<T> values() const {
    return count_ == 0 ? std::vector<T>{} : get<T>(*device_, memory_.pointer(), count_);
  }

 private:
  std::shared_ptr<const Device> device_;
  std::size_t count_;
  DeviceMemory memory_;
};

Submission on_gpu(OpKind kind, const std::string& name, int device, std::size_t count, void* in,
                  void* out) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = name;
  submission.request.device = device;
  submission.request.tensors = {{DType::kFloat32, {static_cast<std::int64_t>(count)}}};
  submission.memory = {{in, out}};
  return submission;
}

Submission in_place_on_gpu(const std::string& name, int device, const OnGpu<float>& tensor) {
  return on_gpu(OpKind::kAllreduce, name, device, tensor.values().size(), tensor.at(), tensor.at());
}

enum class Way { kStaged, kNccl };

Adjust with(Way way, int streams = 1) {
  return [way, streams](EngineOptions& options) {
    options.gpus.cuda = fake_path("libcuda.so.1");
    if (way == Way::kNccl) options.gpus.nccl = fake_path("libnccl.so.2");
    options.settings.nccl_streams = streams;
    options.gpus.timeout = 20 * kSecond;
  };
}

std::vector<float> result_of(const DeviceBuffer& buffer) {
  std::size_t count = 1;
  for (const std::int64_t dim : buffer.shape()) count *= static_cast<std::size_t>(dim);
  if (count == 0) return {};
  return get<float>(*fake_device(buffer.device()), buffer.pointer(), count);
}

void check_nothing_left() {
  const FakeCudaLive left = live();
  CHECK_EQ(left.memory + left.pinned + left.streams + left.events + left.modules + left.contexts,
           0U);
}

constexpr Way kWays[] = {Way::kStaged, Way::kNccl};

}  // namespace

TEST(many_tensors_in_flight_are_reduced_on_their_gpus) {
  const Faults faults("devices=4");
  for (const Way way : kWays) {
    for (const int streams : {1, 3}) {
      run_job(
          3,
          [](int rank, Engine& engine) {
            for (int round = 0; round < 4; ++round) {
              std::vector<std::unique_ptr<OnGpu<float>>> tensors;
              std::vector<std::int64_t> handles;
              for (int t = 0; t < 12; ++t) {
                const std::vector<float> values(static_cast<std::size_t>(t * t * 31),
                                                static_cast<float>(rank + t));
                tensors.push_back(std::make_unique<OnGpu<float>>(rank, values));
                handles.push_back(
                    engine.submit(in_place_on_gpu("t" + std::to_string(t), rank, *tensors.back())));
              }
              for (int t = 11; t >= 0; --t) {
                const auto at = static_cast<std::size_t>(t);
                finish(engine, handles[at]);
                for (const float value : tensors[at]->values()) {
                  CHECK_EQ(value, static_cast<float>(3 * t + 3));
                }
              }
            }
          },
          with(way, streams));
      check_nothing_left();
    }
  }
}

TEST(results_that_the_engine_allocates_are_on_the_gpu) {
  const Faults faults("devices=4");
  for (const Way way : kWays) {
    run_job(
        2,
        [](int rank, Engine& engine) {
          const OnGpu<float> mine(rank, std::vector<float>(static_cast<std::size_t>(rank + 2),
                                                           static_cast<float>(rank)));
          const auto count = static_cast<std::size_t>(rank + 2);
          const OperationPtr gathered = finish(
              engine,
              engine.submit(on_gpu(OpKind::kAllgather, "g", rank, count, mine.at(), nullptr)));
          CHECK_EQ(gathered->outputs.size(), 0U);
          CHECK_EQ(gathered->on_device->outputs.size(), 1U);
          CHECK(result_of(gathered->on_device->outputs[0]) == (std::vector<float>{0, 0, 1, 1, 1}));
          const OnGpu<float> both(rank, {1, 2, 3});
          const OperationPtr share = finish(
              engine,
              engine.submit(on_gpu(OpKind::kReducescatter, "r", rank, 3, both.at(), nullptr)));
          const std::vector<float> expected =
              rank == 0 ? std::vector<float>{2, 4} : std::vector<float>{6};
          CHECK(result_of(share->on_device->outputs[0]) == expected);
        },
        with(way));
    check_nothing_left();
  }
}

TEST(ranks_on_one_gpu_go_through_host_memory_where_nccl_cannot_do_that) {
  const Faults faults("devices=1");
  run_job(
      2,
      [](int, Engine& engine) {
        const OnGpu<float> mine(0, {1, 2, 3});
        finish(engine, engine.submit(in_place_on_gpu("x", 0, mine)));
        CHECK(mine.values() == (std::vector<float>{2, 4, 6}));
      },
      with(Way::kNccl));
}

TEST(what_only_some_ranks_have_is_used_by_none) {
  const Faults faults("devices=4");
  run_job(
      3,
      [](int rank, Engine& engine) {
        const OnGpu<float> mine(rank, {1, 2, 3});
        finish(engine, engine.submit(in_place_on_gpu("x", rank, mine)));
        CHECK(mine.values() == (std::vector<float>{3, 6, 9}));
      },
      [](EngineOptions& options) {
        with(options.meeting.rank == 1 ? Way::kStaged : Way::kNccl)(options);
      });
}

TEST(what_gpus_work_on_at_the_end_of_the_job_is_done) {
  const Faults faults("devices=4,slow=20");
  run_job(
      2,
      [](int rank, Engine& engine) {
        std::vector<std::unique_ptr<OnGpu<float>>> tensors;
        std::vector<std::int64_t> handles;
        for (int t = 0; t < 4; ++t) {
          tensors.push_back(std::make_unique<OnGpu<float>>(rank, std::vector<float>(100, 1.0F)));
          handles.push_back(
              engine.submit(in_place_on_gpu("t" + std::to_string(t), rank, *tensors.back())));
        }
        Submission barrier;  // all have submitted theirs
        barrier.request.kind = OpKind::kBarrier;
        barrier.request.name = "barrier";
        finish(engine, engine.submit(std::move(barrier)));
        engine.shutdown();
        for (const std::int64_t handle : handles) {
          CHECK(engine.wait(handle, monotonic_now() + kPatience));
          const OperationPtr operation = engine.take(handle);
          CHECK(operation->status.ok() || operation->status.kind == ErrorKind::kShutdown);
        }
      },
      with(Way::kNccl));
  check_nothing_left();
}

TEST(an_aborted_job_ends_what_gpus_work_on) {
  const Faults faults("devices=4,slow=50");  // so that they still pack
  for (const int victim : {0, 2}) {
    run_job(
        3,
        [victim](int rank, Engine& engine) {
          const OnGpu<float> one(rank, std::vector<float>(1000, 1.0F));
          const OnGpu<float> other(rank, std::vector<float>(1000, 1.0F));
          Submission group = in_place_on_gpu("group", rank, one);
          group.request.grouped = true;
          group.request.tensors.push_back(group.request.tensors.front());
          group.memory.push_back({other.at(), other.at()});
          const auto handle = engine.submit(std::move(group));
          if (rank == victim) {
            // Until then nobody has launched it; afterwards all have, or will not.
            engine.wait(handle, monotonic_now() + 40 * kMillisecond);
            engine.abort("a test wants it");
          }
          CHECK(engine.wait(handle, monotonic_now() + kPatience));
          const OperationPtr operation = engine.take(handle);
          if (operation->status.ok()) return;  // it was faster
          check_contains(operation->status.text,
                         "rank " + std::to_string(victim) + " ended the job: a test wants it");
        },
        with(Way::kNccl, 2));
    check_nothing_left();
  }
}

TEST(process_sets_have_their_own_communicators) {
  const Faults faults("devices=4");
  run_job(
      3,
      [](int rank, Engine& engine) {
        for (int round = 0; round < 3; ++round) {
          const OperationPtr made = finish(engine, engine.add_process_set({0, 2}));
          const auto set = static_cast<std::uint32_t>(made->numbers.front());
          if (rank != 1) {
            const OnGpu<float> mine(rank, {1, 2, 3});
            Submission submission = in_place_on_gpu("x", rank, mine);
            submission.request.process_set = set;
            finish(engine, engine.submit(std::move(submission)));
            CHECK(mine.values() == (std::vector<float>{2, 4, 6}));
          }
          finish(engine, engine.remove_process_set(set));
        }
      },
      with(Way::kNccl));
  check_nothing_left();
}

namespace {

int communicators() { return fake_nccl_function<int()>("fake_nccl_communicators")(); }
int communicators_used() { return fake_nccl_function<int()>("fake_nccl_used")(); }
int collectives_in_windows() { return fake_nccl_function<int()>("fake_nccl_in_windows")(); }

/// Rank 0 changes the streams; returns when this rank has them.
void move_streams(int rank, Engine& engine, int streams) {
  if (rank == 0) engine.change_settings({.nccl_streams = streams});
  while (engine.settings().nccl_streams != streams) std::this_thread::yield();
}

/// So many tensors at a time, each a batch of its own; all members' sums.
void reduce_beside_each_other(int rank, Engine& engine, int count) {
  std::vector<std::unique_ptr<OnGpu<float>>> tensors;
  std::vector<std::int64_t> handles;
  for (int t = 0; t < count; ++t) {
    const std::vector<float> values(1000, static_cast<float>(rank + t));
    tensors.push_back(std::make_unique<OnGpu<float>>(rank, values));
    Submission one = in_place_on_gpu("t" + std::to_string(t), rank, *tensors.back());
    handles.push_back(engine.submit(std::move(one)));
  }
  for (int t = 0; t < count; ++t) {
    const auto at = static_cast<std::size_t>(t);
    finish(engine, handles[at]);
    CHECK(tensors[at]->values() == std::vector<float>(1000, static_cast<float>(3 * t + 3)));
  }
}

/// As with(), and nothing is fused.
Adjust unfused(int streams) {
  return [streams](EngineOptions& options) {
    with(Way::kNccl, streams)(options);
    options.settings.fusion_threshold = 0;
  };
}

}  // namespace

TEST(streams_are_moved_in_a_running_job) {
  const Faults faults("devices=4");
  const int used = communicators_used();
  run_job(
      3,
      [used](int rank, Engine& engine) {
        CHECK(!engine.uses_nccl());
        const auto check = [&](int streams, int there, int ever_used) {
          if (streams > 0) move_streams(rank, engine, streams);
          reduce_beside_each_other(rank, engine, 9);
          CHECK(engine.uses_nccl());
          Submission barrier;
          barrier.request.kind = OpKind::kBarrier;
          barrier.request.name = "barrier";
          finish(engine, engine.submit(std::move(barrier)));
          CHECK_EQ(communicators(), there);
          CHECK_EQ(communicators_used() - used, ever_used);
          barrier = {};
          barrier.request.kind = OpKind::kBarrier;
          barrier.request.name = "barrier";
          finish(engine, engine.submit(std::move(barrier)));
        };
        check(0, 3, 3);
        check(3, 9, 9);  // of different streams the members would wait for each other for ever
        check(1, 9, 9);
        check(4, 12, 12);
        check(2, 12, 12);
      },
      unfused(1));
  check_nothing_left();
}

TEST(streams_are_moved_while_batches_are_under_way) {
  const Faults faults("devices=4");
  run_job(
      3,
      [](int rank, Engine& engine) {
        for (int round = 0; round < 12; ++round) {
          if (rank == 0) engine.change_settings({.nccl_streams = 1 + round * 7 % 4});
          reduce_beside_each_other(rank, engine, 6);
        }
      },
      unfused(2));
  check_nothing_left();
}

TEST(streams_that_cannot_be_had_are_done_without) {
  const Faults faults("devices=4,comms=6");
  run_job(
      3,
      [](int rank, Engine& engine) {
        reduce_beside_each_other(rank, engine, 4);
        move_streams(rank, engine, 4);
        for (int round = 0; round < 3; ++round) reduce_beside_each_other(rank, engine, 9);
        CHECK_EQ(communicators(), 6);
        Submission barrier;
        barrier.request.kind = OpKind::kBarrier;
        barrier.request.name = "barrier";
        finish(engine, engine.submit(std::move(barrier)));
      },
      unfused(1));
  check_nothing_left();
}

TEST(an_abort_beside_a_change_of_streams_ends_everything) {
  const Faults faults("devices=4,slow=20");
  for (const int victim : {0, 1}) {
    run_job(
        3,
        [victim](int rank, Engine& engine) {
          const OnGpu<float> one(rank, std::vector<float>(1000, 1.0F));
          const std::string why =
              "rank " + std::to_string(victim) + " ended the job: a test wants it";
          std::vector<std::unique_ptr<OnGpu<float>>> tensors;
          std::vector<std::int64_t> handles{engine.submit(in_place_on_gpu("first", rank, one))};
          // The victim, which has it, may end the job before the others have heard of it.
          CHECK(engine.wait(handles.front(), monotonic_now() + kPatience));
          try {
            for (int t = 0; t < 6; ++t) {
              const std::vector<float> values(100, 1.0F);
              tensors.push_back(std::make_unique<OnGpu<float>>(rank, values));
              handles.push_back(
                  engine.submit(in_place_on_gpu("t" + std::to_string(t), rank, *tensors.back())));
              if (t == 2 && rank == 0) engine.change_settings({.nccl_streams = 4});
            }
            if (rank == victim) engine.abort("a test wants it");
          } catch (const Error& error) {  // the victim was faster
            check_contains(error.what(), why);
          }
          for (const std::int64_t handle : handles) {
            CHECK(engine.wait(handle, monotonic_now() + kPatience));
            const OperationPtr operation = engine.take(handle);
            if (!operation->status.ok()) check_contains(operation->status.text, why);
          }
        },
        unfused(1));
    check_nothing_left();
  }
}

TEST(fusion_buffers_are_windows_of_their_process_set) {
  const Faults faults("devices=4");
  const int before = collectives_in_windows();
  const auto grouped = [](int rank, Engine& engine, std::uint32_t set, std::size_t count) {
    const OnGpu<float> one(rank, std::vector<float>(count, 1.0F));
    const OnGpu<float> other(rank, std::vector<float>(count, 2.0F));
    Submission group = in_place_on_gpu("group", rank, one);
    group.request.process_set = set;
    group.request.grouped = true;
    group.request.tensors.push_back(group.request.tensors.front());
    group.memory.push_back({other.at(), other.at()});
    finish(engine, engine.submit(std::move(group)));
    const float members = set == 0 ? 3.0F : 2.0F;
    CHECK(one.values() == std::vector<float>(count, members));
    CHECK(other.values() == std::vector<float>(count, 2 * members));
  };
  run_job(
      3,
      [&](int rank, Engine& engine) {
        std::vector<std::uint32_t> sets;
        for (const std::vector<std::int32_t>& ranks :
             {std::vector<std::int32_t>{0, 1}, std::vector<std::int32_t>{0, 2}}) {
          const OperationPtr made = finish(engine, engine.add_process_set(ranks));
          sets.push_back(static_cast<std::uint32_t>(made->numbers.front()));
        }
        // What one set needs the other's members know nothing of.
        for (const std::size_t count : {1000U, 2000000U}) {
          if (rank != 2) grouped(rank, engine, sets[0], count);
          if (rank != 1) grouped(rank, engine, sets[1], 1000);
          grouped(rank, engine, 0, 3000);
        }
        finish(engine, engine.remove_process_set(sets[0]));
        grouped(rank, engine, 0, 1500000);
      },
      with(Way::kNccl, 2));
  CHECK_EQ(collectives_in_windows() - before, 2 * (2 + 2 + 3) + 3);
  check_nothing_left();
}

TEST(fusion_buffers_that_become_no_windows_serve_as_well) {
  for (const char* const wrong :
       {"devices=4,no-window", "devices=4,null-window", "devices=4,nccl=22105"}) {
    const Faults faults(wrong);
    const int before = collectives_in_windows();
    run_job(
        3,
        [](int rank, Engine& engine) {
          for (int round = 0; round < 2; ++round) reduce_beside_each_other(rank, engine, 6);
        },
        with(Way::kNccl, 2));
    CHECK_EQ(collectives_in_windows(), before);
    check_nothing_left();
  }
}

namespace {

/// A number in the job's status.
int number_in(const std::string& status, const std::string& key) {
  const std::size_t at = status.find("\"" + key + "\":");
  CHECK_MSG(at != std::string::npos, status);
  return std::stoi(status.substr(at + key.size() + 3));
}

}  // namespace

TEST(a_gpu_that_takes_long_is_in_the_status_until_it_is_done) {
  const Faults faults("devices=2,slow=300");
  const std::string slow = "its GPU has been working on group";
  run_job(
      2,
      [&](int rank, Engine& engine) {
        const OnGpu<float> one(rank, std::vector<float>(1000, 1.0F));
        const OnGpu<float> other(rank, std::vector<float>(1000, 1.0F));
        Submission group = in_place_on_gpu("group", rank, one);
        group.request.grouped = true;
        group.request.tensors.push_back(group.request.tensors.front());
        group.memory.push_back({other.at(), other.at()});
        const auto handle = engine.submit(std::move(group));
        if (rank == 0) {
          std::string status = engine.status();
          while (status.find(slow) == std::string::npos) {
            CHECK(!engine.is_done(handle));
            status = engine.status();
          }
          // Between two reports of its GPU, rank 0 checks twice for missing ranks, and finds none.
          const int reports = number_in(status, "stall_reports");
          while (number_in(status, "stall_reports") < reports + 2) {
            check_contains(status, slow);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            status = engine.status();
          }
        }
        finish(engine, handle);
        if (rank == 0) CHECK(engine.status().find(slow) == std::string::npos);
      },
      [](EngineOptions& options) {
        with(Way::kNccl)(options);
        options.stall.enabled = true;
        options.stall.warning = 100 * kMillisecond;
      });
  check_nothing_left();
}

TEST(a_rank_that_has_joined_brings_zeros) {
  const Faults faults("devices=4");
  // A join may also name another GPU than the one in use.
  for (const bool own : {true, false}) {
    for (const Way way : kWays) {
      run_job(
          2,
          [own](int rank, Engine& engine) {
            const OnGpu<float> mine(rank, {1, 2, 3});
            finish(engine, engine.submit(in_place_on_gpu("x", rank, mine)));
            if (rank == 0) {
              const OnGpu<float> more(rank, {1, 2, 3});
              finish(engine, engine.submit(in_place_on_gpu("x", rank, more)));
              CHECK(more.values() == (std::vector<float>{1, 2, 3}));
            }
            finish(engine, engine.join(own ? rank : 1 - rank));
          },
          with(way));
      check_nothing_left();
    }
  }
}

TEST(a_join_may_name_a_gpu_that_is_not_there) {
  const Faults faults("devices=1");
  run_job(
      2,
      [](int rank, Engine& engine) {
        std::vector<float> data{1, 2, 3};
        finish(engine, engine.submit(in_place(OpKind::kAllreduce, "x", data)));
        if (rank == 0) {
          const OnGpu<float> more(0, {1, 2, 3});  // rank 1 has no GPU, but its zeros count
          finish(engine, engine.submit(in_place_on_gpu("y", 0, more)));
          CHECK(more.values() == (std::vector<float>{1, 2, 3}));
        }
        finish(engine, engine.join(rank));
      },
      with(Way::kNccl));
  check_nothing_left();
}

TEST(the_device_of_a_join_is_of_no_matter_without_a_gpu) {
  const Faults faults("no-device");  // the driver is there, as in many containers
  run_job(2, [](int rank, Engine& engine) { finish(engine, engine.join(rank)); }, with(Way::kNccl));
}

}  // namespace hvdtune::testing::test_device_engine
