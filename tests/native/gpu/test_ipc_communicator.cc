#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "collective/gpu/ipc_communicator.h"
#include "gpu_processes.h"

namespace hvdtune::testing::test_ipc_communicator {

namespace {

constexpr std::size_t kWindow = 8192;

/// What a rank of a test has.
struct Rank : GpuRank {
  std::unique_ptr<IpcCommunicator> ipc;
};

using Body = std::function<void(Rank&)>;

std::vector<int> statuses(int size, int gpus, bool connects, const Body& body) {
  return gpu_statuses(size, gpus, [&](GpuRank& has) {
    Rank rank{has, nullptr};
    if (connects) {
      rank.ipc = IpcCommunicator::connect(rank.control, rank.device, rank.kernels,
                                          {.window_bytes = kWindow, .one_shot_limit = 4000});
    }
    body(rank);
  });
}

void in_processes(int size, int gpus, const Body& body, bool connects = true) {
  for (const int status : statuses(size, gpus, connects, body)) CHECK_EQ(status, 0);
}

}  // namespace

TEST(allreduce_of_all_types_and_lengths_as_on_the_cpu) {
  in_processes(3, 3, [](Rank& rank) {
    for (int code = 0; code < kDTypeCount; ++code) {
      const auto dtype = static_cast<DType>(code);
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        const double factor = op == ReduceOp::kSum ? 0.5 : 1.0;
        // One shot, two, two of less than a vector a member, and several windows.
        for (const std::size_t count : {1U, 60U, 501U, 900U, 5000U}) {
          const std::size_t bytes = count * dtype_size(dtype);
          const OnRank<std::uint8_t> in(rank, bytes_of(dtype, bytes, rank.index));
          const OnRank<std::uint8_t> out(rank, std::vector<std::uint8_t>(bytes));
          rank.ipc->allreduce(in.at(), out.at(), count, dtype, op, factor, rank.stream->handle());
          rank.ipc->allreduce(in.at(), in.at(), count, dtype, op, factor, rank.stream->handle());
          rank.stream->synchronize();
          const auto expected = reduced(dtype, op, bytes, rank.size, factor);
          CHECK_MSG(out.values() == expected, dtype_name(dtype) << ", " << count << " elements");
          CHECK_MSG(in.values() == expected, "in place, " << dtype_name(dtype));
        }
      }
    }
  });
}

TEST(ranks_on_one_gpu_and_one_alone) {
  for (const int size : {1, 2, 4}) {
    in_processes(size, 1, [](Rank& rank) {
      const std::size_t bytes = 30000;
      const OnRank<std::uint8_t> values(rank, bytes_of(DType::kFloat32, bytes, rank.index));
      for (int round = 0; round < 2; ++round) {
        const OnRank<std::uint8_t> out(rank, std::vector<std::uint8_t>(bytes));
        rank.ipc->allreduce(values.at(), out.at(), bytes / 4, DType::kFloat32, ReduceOp::kSum, 1.0,
                            rank.stream->handle());
        rank.stream->synchronize();
        CHECK(out.values() == reduced(DType::kFloat32, ReduceOp::kSum, bytes, rank.size, 1.0));
      }
    });
  }
}

TEST(broadcast_and_allgather_over_several_windows) {
  in_processes(3, 2, [](Rank& rank) {
    const std::size_t bytes = 2 * kWindow + 100;
    const OnRank<std::uint8_t> values(rank, bytes_of(DType::kUint8, bytes, rank.index));
    const OnRank<std::uint8_t> copy(rank, std::vector<std::uint8_t>(bytes));
    const OnRank<std::uint8_t> gathered(rank, std::vector<std::uint8_t>(3 * bytes));
    const CudaStream stream = rank.stream->handle();
    rank.ipc->allgather(values.at(), gathered.at(), bytes, stream);
    rank.ipc->broadcast(2, values.at(), copy.at(), bytes, stream);
    rank.ipc->broadcast(1, values.at(), values.at(), bytes, stream);
    rank.stream->synchronize();
    CHECK(copy.values() == bytes_of(DType::kUint8, bytes, 2));
    CHECK(values.values() == bytes_of(DType::kUint8, bytes, 1));
    std::vector<std::uint8_t> expected;
    for (int member = 0; member < 3; ++member) {
      const auto theirs = bytes_of(DType::kUint8, bytes, member);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    CHECK(gathered.values() == expected);
  });
}

TEST(reducescatter_beside_and_in_place) {
  in_processes(3, 3, [](Rank& rank) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
      const std::size_t share = count * sizeof(std::int32_t);
      const std::size_t first = static_cast<std::size_t>(rank.index) * share;
      const OnRank<std::uint8_t> in(rank, bytes_of(DType::kInt32, 3 * share, rank.index));
      const OnRank<std::uint8_t> out(rank, std::vector<std::uint8_t>(share));
      const CudaStream stream = rank.stream->handle();
      rank.ipc->reducescatter(in.at(), out.at(), count, DType::kInt32, ReduceOp::kSum, 1.0, stream);
      rank.ipc->reducescatter(in.at(), in.at(first), count, DType::kInt32, ReduceOp::kSum, 1.0,
                              stream);
      rank.stream->synchronize();
      const auto all = reduced(DType::kInt32, ReduceOp::kSum, 3 * share, 3, 1.0);
      const std::vector<std::uint8_t> expected(
          all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(first + share));
      CHECK(out.values() == expected);
      CHECK(get<std::uint8_t>(*rank.device, in.at(first), share) == expected);
    }
  });
}

TEST(exchange_of_unequal_parts) {
  in_processes(3, 3, [](Rank& rank) {
    const auto many = [](int from, int to) {
      return from == 1 ? std::size_t{0} : static_cast<std::size_t>(3000 * from + 10 * to);
    };
    std::vector<int> values(1);
    std::vector<int> expected(1);
    for (int other = 0; other < rank.size; ++other) {
      values.insert(values.end(), many(rank.index, other), 100 * rank.index + other);
      expected.insert(expected.end(), many(other, rank.index), 100 * other + rank.index);
    }
    const OnRank<int> in(rank, values);
    const OnRank<int> out(rank, std::vector<int>(expected.size()));
    std::vector<DevicePiece> send;
    std::vector<DevicePiece> receive;
    std::size_t sent = 1;
    std::size_t received = 1;
    for (int other = 0; other < rank.size; ++other) {
      send.push_back(in.piece(sent, many(rank.index, other)));
      receive.push_back(out.piece(received, many(other, rank.index)));
      sent += many(rank.index, other);
      received += many(other, rank.index);
    }
    rank.ipc->exchange(send, receive, rank.stream->handle());
    rank.ipc->exchange(send, receive, rank.stream->handle());
    rank.stream->synchronize();
    CHECK(out.values() == expected);
  });
}

TEST(streams_and_slow_gpus_keep_the_order) {
  in_processes(2, 2, [](Rank& rank) {
    const Faults slow(rank.index == 0 ? "slow=1" : "slow=0");
    DeviceStream second(rank.device);
    const OnRank<std::int32_t> values(rank, std::vector<std::int32_t>(100, rank.index + 1));
    const OnRank<std::int32_t> others(rank, std::vector<std::int32_t>(3000, rank.index + 1));
    for (int round = 0; round < 10; ++round) {
      rank.ipc->allreduce(values.at(), values.at(), 100, DType::kInt32, ReduceOp::kMax, 1.0,
                          rank.stream->handle());
      rank.ipc->allreduce(others.at(), others.at(), 3000, DType::kInt32, ReduceOp::kSum, 1.0,
                          second.handle());
    }
    rank.stream->synchronize();
    second.synchronize();
    CHECK(values.values() == std::vector<std::int32_t>(100, 2));
    CHECK(others.values() == std::vector<std::int32_t>(3000, 3 << 9));
  });
}

TEST(what_it_is_called_and_what_it_takes) {
  in_processes(1, 1, [](Rank& rank) {
    CHECK_EQ(std::string(rank.ipc->activity(OpKind::kAllreduce)), std::string("IPC_ALLREDUCE"));
    CHECK(rank.ipc->supports(DType::kInt16, ReduceOp::kSum, 0.5));
    CHECK(!rank.ipc->supports(DType::kFloat32, ReduceOp::kMax, 0.5));
    CHECK(!rank.ipc->supports(DType::kFloat32, ReduceOp::kAdasum, 1.0));
    CHECK_THROWS_WITH(
        rank.ipc->allreduce(0, 0, 1, DType::kFloat32, ReduceOp::kMax, 0.5, rank.stream->handle()),
        Error, "CUDA IPC cannot reduce float32 with operator 4");
    rank.ipc->allreduce(0, 0, 0, DType::kFloat32, ReduceOp::kSum, 1.0, rank.stream->handle());
  });
}

TEST(one_that_cannot_share_is_the_same_sentence_for_all) {
  in_processes(
      2, 2,
      [](Rank& rank) {
        const Faults faults(rank.index == 1 ? "no-ipc" : "");
        CHECK_THROWS_WITH(IpcCommunicator::connect(rank.control, rank.device, rank.kernels, {}),
                          Error, "cuIpcGetMemHandle for GPU 1 (Fake GPU) gives");
      },
      false);
  in_processes(
      2, 2,
      [](Rank& rank) {
        const Faults faults(rank.index == 0 ? "memory=1" : "");
        CHECK_THROWS_WITH(IpcCommunicator::connect(rank.control, rank.device, rank.kernels, {}),
                          Error, "cuMemAlloc: no 8388608 bytes left for GPU 0");
      },
      false);
  in_processes(
      2, 2,
      [](Rank& rank) {
        const auto none = std::make_shared<DeviceKernels>(rank.device, nullptr);
        CHECK_THROWS_WITH(IpcCommunicator::connect(rank.control, rank.device, none, {}), Error,
                          "CUDA IPC needs kernels: ");
      },
      false);
}

TEST(who_leaves_first_waits_for_readers_and_not_for_ranks) {
  in_processes(2, 2, [](Rank& rank) {
    const OnRank<float> values(rank, std::vector<float>(500, 1.0F));
    const Faults slow(rank.index == 1 ? "slow=20" : "slow=0");
    rank.ipc->allreduce(values.at(), values.at(), 500, DType::kFloat32, ReduceOp::kSum, 1.0,
                        rank.stream->handle());
    if (rank.index == 0) {
      rank.ipc.reset();  // the other still reads its buffer, slowly, and stays
    }
    rank.stream->synchronize();
    CHECK(values.values() == std::vector<float>(500, 2.0F));
    rank.control.barrier();
  });
}

TEST(an_aborted_communicator_says_so) {
  in_processes(1, 1, [](Rank& rank) {
    rank.ipc->abort();
    rank.ipc->abort();
    CHECK(rank.ipc->failure().has_value());
    CHECK_THROWS_WITH(rank.ipc->broadcast(0, 0, 0, 4, rank.stream->handle()), Error,
                      "IPC_BCAST: the exchange between GPUs was aborted");
  });
}

TEST(a_rank_that_dies_leaves_nothing_hanging) {
  void* const shared = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  auto& ready = *new (shared) std::atomic<int>(0);
  const auto all = statuses(3, 3, true, [&](Rank& rank) {
    const OnRank<float> values(rank, std::vector<float>(5000, 1.0F));
    const auto sum = [&] {
      rank.ipc->allreduce(values.at(), values.at(), 5000, DType::kFloat32, ReduceOp::kSum, 1.0,
                          rank.stream->handle());
    };
    sum();
    rank.stream->synchronize();
    ++ready;
    if (rank.index == 2) {
      while (ready < 3) std::this_thread::yield();
      rank.arena.abort("rank 2 is gone");  // what the liveness watch of the others does
      kill(getpid(), SIGKILL);
    }
    CHECK_THROWS_WITH(sum(), Error, "rank 2 is gone");
    rank.stream->synchronize();
    CHECK_EQ(*rank.ipc->failure(), std::string("rank 2 is gone"));
    CHECK_THROWS_WITH(sum(), Error, "IPC_ALLREDUCE: rank 2 is gone");
  });
  CHECK_EQ(all[0], 0);
  CHECK_EQ(all[1], 0);
  CHECK(WIFSIGNALED(all[2]));
  munmap(shared, sizeof(std::atomic<int>));
}

}  // namespace hvdtune::testing::test_ipc_communicator
