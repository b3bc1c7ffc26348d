// PeerAllreduce, and the communicator that has it beside NCCL.
#include "collective/gpu/bypass_communicator.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "collective/gpu/nccl_communicator.h"
#include "gpu_processes.h"

namespace hvdtune::testing::test_bypass_communicator {

namespace {

constexpr std::size_t kLongest = PeerAllreduce::kLongest;

std::unique_ptr<PeerAllreduce> connected(const GpuRank& rank) {
  return PeerAllreduce::connect(rank.control, rank.device, rank.kernels);
}

std::shared_ptr<NcclCommunicator> nccl(const GpuRank& rank) {
  NcclOptions options;
  options.timeout = 20 * kSecond;
  options.aborted = [&arena = rank.arena]() -> std::optional<std::string> {
    if (!arena.aborted()) return {};
    return arena.abort_status().text;
  };
  return NcclCommunicator::connect(rank.control, NcclLibrary::open(fake_path("libnccl.so.2")),
                                   rank.device, options);
}

/// Numbers that processes share, all 0.
struct Shared {
  Shared()
      : memory(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    CHECK(memory != MAP_FAILED);
    number = new (memory) std::atomic<int>(0);
  }
  ~Shared() { munmap(memory, 4096); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void* memory;
  std::atomic<int>* number;
};

}  // namespace

TEST(short_allreduces_of_all_types_are_those_of_the_cpu) {
  for (const int size : {2, 3, 4}) {
    in_gpu_processes(size, size, [](GpuRank& rank) {
      const auto peers = connected(rank);
      for (int code = 0; code < kDTypeCount; ++code) {
        const auto dtype = static_cast<DType>(code);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          const double factor = op == ReduceOp::kSum ? 0.5 : 1.0;
          // Less than a vector, a rest behind the last one, two blocks.
          for (const std::size_t count : {1U, 37U, 900U}) {
            const std::size_t bytes = count * dtype_size(dtype);
            const OnRank<std::uint8_t> in(rank, bytes_of(dtype, bytes, rank.index));
            const OnRank<std::uint8_t> out(rank, std::vector<std::uint8_t>(bytes));
            const CudaStream stream = rank.stream->handle();
            peers->allreduce(in.at(), out.at(), count, dtype, op, factor, stream);
            peers->allreduce(in.at(), in.at(), count, dtype, op, factor, stream);
            rank.stream->synchronize();
            const auto expected = reduced(dtype, op, bytes, rank.size, factor);
            CHECK_MSG(out.values() == expected, dtype_name(dtype) << ", " << count << " elements");
            CHECK_MSG(in.values() == expected, "in place, " << dtype_name(dtype));
          }
        }
      }
    });
  }
}

TEST(tensors_that_begin_anywhere_and_the_longest) {
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    const auto peers = connected(rank);
    const CudaStream stream = rank.stream->handle();
    std::vector<std::int32_t> brought(kLongest / 4 + 8);
    for (std::size_t at = 0; at < brought.size(); ++at) {
      brought[at] = static_cast<std::int32_t>(at) * (rank.index + 1);
    }
    const OnRank<std::int32_t> in(rank, brought);
    for (const auto& [from, to, count] :
         {std::tuple{std::size_t{1}, std::size_t{0}, kLongest / 4},
          std::tuple{std::size_t{0}, std::size_t{3}, kLongest / 4},
          std::tuple{std::size_t{2}, std::size_t{5}, std::size_t{9}},
          std::tuple{std::size_t{4}, std::size_t{4}, std::size_t{0}}}) {
      const OnRank<std::int32_t> out(rank, std::vector<std::int32_t>(brought.size(), -1));
      peers->allreduce(in.at(from), out.at(to), count, DType::kInt32, ReduceOp::kSum, 1.0, stream);
      rank.stream->synchronize();
      std::vector<std::int32_t> expected(brought.size(), -1);
      for (std::size_t at = 0; at < count; ++at) {
        expected[to + at] = 3 * static_cast<std::int32_t>(from + at);
      }
      CHECK(out.values() == expected);  // nothing beside it, either
    }
  });
}

TEST(rounds_follow_each_other_on_slow_gpus_and_on_other_streams) {
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    const auto peers = connected(rank);
    const Faults slow(rank.index == 0 ? "slow=1" : "slow=0");
    DeviceStream second(rank.device);
    const OnRank<std::int32_t> values(rank, std::vector<std::int32_t>(100, 1));
    const OnRank<std::int32_t> others(rank, std::vector<std::int32_t>(9000, 1));
    for (int round = 0; round < 8; ++round) {
      peers->allreduce(values.at(), values.at(), 100, DType::kInt32, ReduceOp::kSum, 1.0,
                       rank.stream->handle());
      peers->allreduce(others.at(), others.at(), 9000, DType::kInt32, ReduceOp::kSum, 1.0,
                       second.handle());
    }
    rank.stream->synchronize();
    second.synchronize();
    CHECK(values.values() == std::vector<std::int32_t>(100, 256));
    CHECK(others.values() == std::vector<std::int32_t>(9000, 256));
  });
}

TEST(short_ones_pass_nccl_and_all_else_goes_by_it) {
  in_gpu_processes(3, 3, [](GpuRank& rank) {
    {
      const auto rest = nccl(rank);
      BypassCommunicator both(rest, connected(rank));
      CHECK_EQ(std::string(both.activity(OpKind::kAllreduce)), std::string("IPC_ALLREDUCE"));
      CHECK_EQ(std::string(both.activity(OpKind::kBroadcast)), std::string("NCCL_BCAST"));
      CHECK_EQ(both.size(), 3);
      CHECK_EQ(both.index(), rank.index);
      CHECK(!both.supports(DType::kInt16, ReduceOp::kSum, 1.0));  // as NCCL: the way is one of both
      const CudaStream stream = rank.stream->handle();
      DeviceStream second(rank.device);
      const std::size_t longest = kLongest / 4;
      const OnRank<std::int32_t> large(rank, std::vector<std::int32_t>(longest + 1, 1));
      const OnRank<std::int32_t> small(rank, std::vector<std::int32_t>(50, 1));
      for (int round = 0; round < 3; ++round) {
        // Just too long, just short enough, and both at once on two streams.
        both.allreduce(large.at(), large.at(), longest + 1, DType::kInt32, ReduceOp::kSum, 1.0,
                       stream);
        both.allreduce(large.at(), large.at(), longest, DType::kInt32, ReduceOp::kSum, 1.0, stream);
        both.allreduce(small.at(), small.at(), 50, DType::kInt32, ReduceOp::kSum, 1.0,
                       second.handle());
        rest->allreduce(large.at(), large.at(), longest, DType::kInt32, ReduceOp::kMax, 1.0,
                        stream);
      }
      both.broadcast(1, small.at(), small.at(), 8, second.handle());
      const OnRank<std::int32_t> gathered(rank, std::vector<std::int32_t>(6));
      both.allgather(small.at(), gathered.at(), 8, second.handle());
      const OnRank<std::int32_t> share(rank, {0});
      both.reducescatter(gathered.at(), share.at(), 1, DType::kInt32, ReduceOp::kMax, 1.0,
                         second.handle());
      rank.stream->synchronize();
      second.synchronize();
      auto expected = std::vector<std::int32_t>(longest + 1, 729);
      expected.back() = 27;
      CHECK(large.values() == expected);
      CHECK(gathered.values() == std::vector<std::int32_t>(6, 27));
      CHECK(share.values() == std::vector<std::int32_t>{27});
      CHECK(!both.failure());
    }
  });
}

TEST(who_leaves_first_waits_for_readers_and_not_for_ranks) {
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    auto peers = connected(rank);
    const OnRank<float> values(rank, std::vector<float>(500, 1.0F));
    const Faults slow(rank.index == 1 ? "slow=20" : "slow=0");
    for (int round = 0; round < 2; ++round) {
      peers->allreduce(values.at(), values.at(), 500, DType::kFloat32, ReduceOp::kSum, 1.0,
                       rank.stream->handle());
    }
    if (rank.index == 0) {
      rank.stream->synchronize();
      peers.reset();  // the other stays
    }
    rank.stream->synchronize();
    CHECK(values.values() == std::vector<float>(500, 4.0F));
    rank.control.barrier();
  });
}

TEST(an_abort_ends_what_waits_and_leaves_the_result_alone) {
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    const auto peers = connected(rank);
    CHECK(!peers->failure());
    if (rank.index == 0) {
      const OnRank<float> values(rank, std::vector<float>(5000, 1.0F));
      const OnRank<float> result(rank, std::vector<float>(5000, 7.0F));
      peers->allreduce(values.at(), result.at(), 5000, DType::kFloat32, ReduceOp::kSum, 1.0,
                       rank.stream->handle());
      peers->abort();
      peers->abort();
      rank.stream->synchronize();
      CHECK(result.values() == std::vector<float>(5000, 7.0F));
      CHECK_EQ(*peers->failure(), std::string("the exchange between GPUs was aborted"));
      CHECK_THROWS_WITH(peers->allreduce(values.at(), values.at(), 1, DType::kFloat32,
                                         ReduceOp::kSum, 1.0, rank.stream->handle()),
                        Error, "IPC_ALLREDUCE: the exchange between GPUs was aborted");
    }
    rank.control.barrier();
  });
}

TEST(a_launch_that_fails_is_the_last) {
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    const auto peers = connected(rank);
    if (rank.index == 0) {
      const OnRank<float> values(rank, {1.0F});
      const auto sum = [&] {
        peers->allreduce(values.at(), values.at(), 1, DType::kFloat32, ReduceOp::kSum, 1.0,
                         rank.stream->handle());
      };
      {
        const Faults faults("fail-launch");
        CHECK_THROWS_WITH(sum(), Error, "cuLaunchKernel failed");
      }
      CHECK_THROWS_WITH(sum(), Error, "IPC_ALLREDUCE: cuLaunchKernel failed");
    }
    rank.control.barrier();
  });
}

TEST(a_rank_that_dies_leaves_nothing_hanging) {
  const Shared ready;
  const auto all = gpu_statuses(3, 3, [&](GpuRank& rank) {
    BypassCommunicator both(nccl(rank), connected(rank));
    const OnRank<float> values(rank, std::vector<float>(5000, 1.0F));
    const OnRank<float> large(rank, std::vector<float>(kLongest / 4 + 1, 1.0F));
    const CudaStream stream = rank.stream->handle();
    const auto sum = [&](const OnRank<float>& what) {
      both.allreduce(what.at(), what.at(), what.count, DType::kFloat32, ReduceOp::kSum, 1.0,
                     stream);
    };
    sum(large);
    sum(values);
    rank.stream->synchronize();
    ++*ready.number;
    if (rank.index == 2) {
      while (*ready.number < 5) std::this_thread::yield();
      kill(getpid(), SIGKILL);
    }
    // A kernel that waits for it, NCCL behind that in the same stream, and a kernel once more.
    sum(values);
    sum(large);
    sum(values);
    ++*ready.number;
    while (*ready.number < 5) std::this_thread::yield();
    both.abort();  // what the engine does when the liveness watch tells it
    rank.stream->synchronize();
    CHECK(both.failure().has_value());
    CHECK_THROWS_WITH(sum(values), Error, "IPC_ALLREDUCE: the exchange between GPUs was aborted");
  });
  CHECK_EQ(all[0], 0);
  CHECK_EQ(all[1], 0);
  CHECK(WIFSIGNALED(all[2]));
}

TEST(where_it_cannot_be_is_the_same_sentence_for_all) {
  const auto refused = [](int size, const char* faults, const char* text) {
    in_gpu_processes(size, 2, [&](GpuRank& rank) {
      const Faults set(rank.index == size - 1 ? faults : "");
      CHECK_THROWS_WITH(connected(rank), Error, text);
    });
  };
  refused(2, "no-peer",
          "cuIpcOpenMemHandle for GPU 1 (Fake GPU) gives CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
  refused(2, "no-ipc", "cuIpcGetMemHandle for GPU 1 (Fake GPU) gives");
  refused(2, "memory=1", "cuMemAlloc: no ");
  refused(2, "pinned=1", "cuMemHostAlloc: no ");
  refused(3, "", "members 0 and 2 are on one GPU");
  refused(1, "", "there is one member");
  in_gpu_processes(2, 2, [](GpuRank& rank) {
    if (rank.index == 1) rank.kernels = std::make_shared<DeviceKernels>(rank.device, nullptr);
    CHECK_THROWS_WITH(connected(rank), Error, "member 1 has no kernels of hvdtune");
  });
}

}  // namespace hvdtune::testing::test_bypass_communicator
