#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/half.h"
#include "collective/exchange_texts.h"
#include "collective/gpu/nccl_communicator.h"
#include "nccl_members.h"

namespace hvdtune::testing::test_nccl_communicator {

namespace {

template <class T>
std::vector<T> numbers(std::size_t count, int member) {
  std::vector<T> values(count);
  for (std::size_t index = 0; index < count; ++index) {
    values[index] = static_cast<T>(index % 7 + static_cast<std::size_t>(member));
  }
  return values;
}

/// One of two processes: the second dies when the first waits for it. What the first tells its
/// parent.
int live_on(const std::shared_ptr<Arena>& arena, int rank) {
  ShmCommunicator control(arena, {0, 1}, rank, 0, Patience{});
  const auto device = fake_device(rank);
  const auto nccl = NcclCommunicator::connect(control, fake_nccl(), device, {});
  const DeviceStream stream(device);
  const DeviceMemory memory(device, 4);
  put(*device, memory.pointer(), std::vector<int>{rank});
  const auto sum = [&] {
    nccl->allreduce(memory.pointer(), memory.pointer(), 1, DType::kInt32, ReduceOp::kSum, 1.0,
                    stream.handle());
  };
  sum();
  stream.synchronize();
  if (get<int>(*device, memory.pointer(), 1)[0] != 1) return 1;
  if (nccl->failure()) return 2;
  if (rank == 1) kill(getpid(), SIGKILL);
  sum();
  DeviceEvent end(device, false);
  end.record(stream.handle());
  while (!nccl->failure()) std::this_thread::yield();
  if (nccl->failure()->find("NCCL failed: remote process exited") != 0) return 3;
  if (end.done()) return 4;  // as on a real machine, the GPU still waits
  nccl->abort();
  end.synchronize();
  return 0;
}

}  // namespace

// First, while this process has no other threads: it forks.
TEST(a_dead_member_is_told_and_what_waits_for_it_is_ended) {
  const auto arena = Arena::create(2);
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    CHECK(children[rank] >= 0);
    if (children[rank] != 0) continue;
    int result = 99;
    try {
      result = live_on(arena, rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    _exit(result);
  }
  int status[2];
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(waitpid(children[rank], &status[rank], 0), children[rank]);
  }
  CHECK(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL);
  CHECK(WIFEXITED(status[0]));
  CHECK_EQ(WEXITSTATUS(status[0]), 0);
}

TEST(versions_are_checked_and_told) {
  CHECK_EQ(fake_nccl()->version(), 23000);
  CHECK_EQ(nccl_version_text(22707), std::string("2.27.7"));
  CHECK_THROWS_WITH(NcclLibrary::open("/nowhere/libnccl.so.2"), Error,
                    "NCCL cannot be loaded: /nowhere/libnccl.so.2");
  CHECK_THROWS_WITH(NcclLibrary::open("libm.so.6"), Error, "has no ncclGetVersion");
  const Faults faults("nccl=21805");
  CHECK_THROWS_WITH(fake_nccl(), Error, "is version 2.18.5: hvdtune needs NCCL 2.19 or later");
}

TEST(allreduce_sums_in_place_and_beside) {
  on_members(3, [](Member& member) {
    const std::size_t count = 1000;
    const OnGpu<float> in(member, numbers<float>(count, member.index));
    const OnGpu<float> out(member, std::vector<float>(count));
    member.nccl.allreduce(in.at(), out.at(), count, DType::kFloat32, ReduceOp::kSum, 1.0,
                          member.stream.handle());
    member.nccl.allreduce(in.at(), in.at(), count, DType::kFloat32, ReduceOp::kMax, 1.0,
                          member.stream.handle());
    member.stream.synchronize();
    const auto sums = out.values();
    const auto most = in.values();
    for (std::size_t index = 0; index < count; ++index) {
      CHECK_EQ(sums[index], static_cast<float>(3 * (index % 7) + 3));
      CHECK_EQ(most[index], static_cast<float>(index % 7 + 2));
    }
  });
}

TEST(a_factor_goes_into_the_sum) {
  on_members(2, [](Member& member) {
    const OnGpu<float> single(member, numbers<float>(9, member.index));
    const OnGpu<double> twice(member, numbers<double>(9, member.index));
    std::vector<std::uint16_t> bits;
    for (int value = 0; value < 9; ++value) bits.push_back(float_to_float16(8.0F + value));
    const OnGpu<std::uint16_t> half(member, bits);
    const CudaStream stream = member.stream.handle();
    member.nccl.allreduce(single.at(), single.at(), 9, DType::kFloat32, ReduceOp::kSum, 0.5,
                          stream);
    member.nccl.allreduce(twice.at(), twice.at(), 9, DType::kFloat64, ReduceOp::kSum, 1.0 / 3,
                          stream);
    member.nccl.allreduce(half.at(), half.at(), 9, DType::kFloat16, ReduceOp::kSum, 0.5, stream);
    member.stream.synchronize();
    for (std::size_t index = 0; index < 9; ++index) {
      const double sum = 2.0 * static_cast<double>(index % 7) + 1;
      CHECK_EQ(single.values()[index], static_cast<float>(sum / 2));
      CHECK(std::abs(twice.values()[index] - sum / 3) < 1e-12);
      CHECK_EQ(float16_to_float(half.values()[index]), 8.0F + static_cast<float>(index));
    }
  });
}

TEST(all_types_and_operators_that_nccl_has) {
  on_members(2, [](Member& member) {
    const NcclCommunicator& nccl = member.nccl;
    for (int code = 0; code < kDTypeCount; ++code) {
      const auto dtype = static_cast<DType>(code);
      const bool known = dtype != DType::kInt16 && dtype != DType::kUint16;
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        CHECK_EQ(nccl.supports(dtype, op, 1.0), known);
        const bool floating = dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
                              dtype == DType::kFloat32 || dtype == DType::kFloat64;
        CHECK_EQ(nccl.supports(dtype, op, 0.5), floating && op == ReduceOp::kSum);
      }
      CHECK(!nccl.supports(dtype, ReduceOp::kAdasum, 1.0));
    }
    // What a half cannot hold with all its digits is somebody else's to multiply.
    CHECK(!nccl.supports(DType::kFloat16, ReduceOp::kSum, 1e-6));
    CHECK(!nccl.supports(DType::kFloat16, ReduceOp::kSum, 1e6));
    CHECK(nccl.supports(DType::kBfloat16, ReduceOp::kSum, 1e-6));
    CHECK(!nccl.supports(DType::kFloat32, ReduceOp::kSum, 1e-300));
    const OnGpu<std::int16_t> values(member, {1, 2});
    CHECK_THROWS_WITH(member.nccl.allreduce(values.at(), values.at(), 2, DType::kInt16,
                                            ReduceOp::kSum, 1.0, member.stream.handle()),
                      Error, "NCCL cannot reduce int16");
    // bool: OR and AND, whatever it is called.
    const OnGpu<std::uint8_t> any(member, {0, member.index == 0, 1});
    const OnGpu<std::uint8_t> all(member, {0, member.index == 0, 1});
    member.nccl.allreduce(any.at(), any.at(), 3, DType::kBool, ReduceOp::kSum, 1.0,
                          member.stream.handle());
    member.nccl.allreduce(all.at(), all.at(), 3, DType::kBool, ReduceOp::kProduct, 1.0,
                          member.stream.handle());
    member.stream.synchronize();
    CHECK((any.values() == std::vector<std::uint8_t>{0, 1, 1}));
    CHECK((all.values() == std::vector<std::uint8_t>{0, 0, 1}));
  });
}

TEST(broadcast_allgather_and_reducescatter) {
  on_members(3, [](Member& member) {
    const CudaStream stream = member.stream.handle();
    const OnGpu<int> everywhere(member, std::vector<int>(5, member.index));
    member.nccl.broadcast(1, everywhere.at(), everywhere.at(), 5 * sizeof(int), stream);
    const OnGpu<int> mine(member, std::vector<int>(4, 10 + member.index));
    const OnGpu<int> gathered(member, std::vector<int>(12));
    member.nccl.allgather(mine.at(), gathered.at(), 4 * sizeof(int), stream);
    const OnGpu<int> shares(member, {member.index, 1, 2, 3, 4, 5});
    const OnGpu<int> share(member, {0, 0});
    member.nccl.reducescatter(shares.at(), share.at(), 2, DType::kInt32, ReduceOp::kSum, 1.0,
                              stream);
    member.stream.synchronize();
    CHECK((everywhere.values() == std::vector<int>(5, 1)));
    CHECK((gathered.values() == std::vector<int>{10, 10, 10, 10, 11, 11, 11, 11, 12, 12, 12, 12}));
    const int first = member.index == 0 ? 0 + 1 + 2 : 3 * 2 * member.index;
    CHECK((share.values() == std::vector<int>{first, 3 * (2 * member.index + 1)}));
  });
}

TEST(exchange_sends_unequal_parts) {
  on_members(3, [](Member& member) {
    // Member m sends m + to numbers, of the value 100 * m + to; nobody sends anything to member 0
    // but member 2.
    const auto many = [](int from, int to) {
      return to == 0 && from != 2 ? std::size_t{0} : static_cast<std::size_t>(1000 * from + to);
    };
    std::vector<int> values;
    std::vector<int> expected;
    std::vector<std::size_t> to_each;
    std::vector<std::size_t> from_each;
    for (int other = 0; other < member.size; ++other) {
      to_each.push_back(many(member.index, other));
      from_each.push_back(many(other, member.index));
      values.insert(values.end(), to_each.back(), 100 * member.index + other);
      expected.insert(expected.end(), from_each.back(), 100 * other + member.index);
    }
    values.push_back(0);  // an allocation has at least a byte
    const OnGpu<int> in(member, values);
    const OnGpu<int> out(member, std::vector<int>(expected.size() + 1));
    std::vector<DevicePiece> send;
    std::vector<DevicePiece> receive;
    std::size_t sent = 0;
    std::size_t received = 0;
    for (std::size_t other = 0; other < to_each.size(); ++other) {
      send.push_back(in.piece(sent, to_each[other]));
      receive.push_back(out.piece(received, from_each[other]));
      sent += to_each[other];
      received += from_each[other];
    }
    for (int round = 0; round < 3; ++round) {
      member.nccl.exchange(send, receive, member.stream.handle());
    }
    member.stream.synchronize();
    expected.push_back(0);
    CHECK(out.values() == expected);
  });
}

TEST(nothing_to_do_is_nothing) {
  on_members(2, [](Member& member) {
    const CudaStream stream = member.stream.handle();
    member.nccl.allreduce(0, 0, 0, DType::kFloat32, ReduceOp::kSum, 1.0, stream);
    member.nccl.broadcast(0, 0, 0, 0, stream);
    member.nccl.allgather(0, 0, 0, stream);
    member.nccl.reducescatter(0, 0, 0, DType::kFloat32, ReduceOp::kSum, 1.0, stream);
    const std::vector<DevicePiece> nothing(2);
    member.nccl.exchange(nothing, nothing, stream);
    member.stream.synchronize();
    CHECK(!member.nccl.failure());
  });
}

TEST(a_single_member_reduces_alone) {
  on_members(1, [](Member& member) {
    const OnGpu<float> values(member, {1, 2, 3});
    member.nccl.allreduce(values.at(), values.at(), 3, DType::kFloat32, ReduceOp::kSum, 2.0,
                          member.stream.handle());
    member.stream.synchronize();
    CHECK((values.values() == std::vector<float>{2, 4, 6}));
  });
}

TEST(large_data_and_several_streams_keep_their_order) {
  on_members(2, [](Member& member) {
    const std::size_t count = 700000;  // several windows of the fake
    DeviceStream second(member.device);
    const OnGpu<int> values(member, numbers<int>(count, member.index));
    DeviceEvent between(member.device, false);
    member.nccl.allreduce(values.at(), values.at(), count, DType::kInt32, ReduceOp::kSum, 1.0,
                          member.stream.handle());
    between.record(member.stream.handle());
    second.wait(between);
    member.nccl.allreduce(values.at(), values.at(), count, DType::kInt32, ReduceOp::kSum, 1.0,
                          second.handle());
    second.synchronize();
    const auto sums = values.values();
    for (std::size_t index = 0; index < count; ++index) {
      CHECK_EQ(sums[index], 2 * static_cast<int>(2 * (index % 7) + 1));
    }
  });
}

TEST(names_of_activities_are_horovod_s) {
  on_members(1, [](Member& member) {
    const auto name = [&](OpKind kind) { return std::string(member.nccl.activity(kind)); };
    CHECK_EQ(name(OpKind::kAllreduce), std::string("NCCL_ALLREDUCE"));
    CHECK_EQ(name(OpKind::kBroadcast), std::string("NCCL_BCAST"));
    CHECK_EQ(name(OpKind::kAlltoall), std::string("NCCL_ALLTOALL"));
  });
}

namespace {

/// connect() on two members of GPUs `first` and `second` throws `text` on both.
void check_refused(int first, int second, const char* text, NcclOptions options = {}) {
  World world(2);
  world.run([&](int rank, Communicator& control) {
    const auto device = fake_device(rank == 0 ? first : second);
    CHECK_THROWS_WITH(NcclCommunicator::connect(control, fake_nccl(), device, options), Error,
                      text);
  });
  CHECK_EQ(communicators_left(), 0);
}

/// Member 1 of two, on GPU 1: says all that connect() says before NCCL connects, and does not
/// connect.
void say_all_but_connect(Communicator& control) {
  const auto device = fake_device(1);
  std::int64_t uuid[2];
  std::memcpy(uuid, &device->uuid(), sizeof uuid);
  (void)control.exchange({23000, uuid[0], uuid[1], 0});
  (void)first_problem(control, "");
  (void)control.exchange(std::vector<std::int64_t>(16));
}

}  // namespace

TEST(members_on_one_gpu_are_told_what_to_do) {
  check_refused(1, 1, "members 0 and 1 are on one GPU (Fake GPU): give each rank a GPU of its own");
  const Faults faults("nccl=22707");
  NcclOptions options;
  options.share_gpu = true;
  check_refused(0, 0,
                "which NCCL 2.27.7 cannot do: give each rank a GPU of its own, or use NCCL 2.30",
                options);
}

TEST(members_may_share_a_gpu_where_nccl_can) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  World world(2);
  NcclOptions options;
  options.share_gpu = true;
  world.run([&](int rank, Communicator& control) {
    const auto device = fake_device(0);
    const auto nccl = NcclCommunicator::connect(control, fake_nccl(), device, options);
    const DeviceStream stream(device);
    const DeviceMemory memory(device, 4);
    put(*device, memory.pointer(), std::vector<int>{rank + 1});
    nccl->allreduce(memory.pointer(), memory.pointer(), 1, DType::kInt32, ReduceOp::kSum, 1.0,
                    stream.handle());
    stream.synchronize();
    CHECK_EQ(get<int>(*device, memory.pointer(), 1)[0], 3);
  });
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(what_nccl_cannot_begin_is_the_same_sentence_for_all) {
  {
    const Faults faults("no-id");
    check_refused(0, 1, "NCCL cannot start: unhandled system error (no network interface)");
  }
  const Faults faults("init-fails");
  check_refused(0, 1, "INIT_NCCL failed: unhandled system error (no network)");
}

TEST(an_abort_ends_what_waits_for_others) {
  on_members(2,
             [](Member& member) {
               const OnGpu<float> values(member, {1, 2, 3});
               // The members' first collective makes connections: both have it behind them.
               member.nccl.allreduce(values.at(), values.at(), 3, DType::kFloat32, ReduceOp::kSum,
                                     1.0, member.stream.handle());
               member.stream.synchronize();
               if (member.index == 1) return;  // and never comes again
               DeviceEvent end(member.device, false);
               member.nccl.allreduce(values.at(), values.at(), 3, DType::kFloat32, ReduceOp::kSum,
                                     1.0, member.stream.handle());
               end.record(member.stream.handle());
               CHECK(!end.done());
               std::thread other([&] { member.nccl.abort(); });
               end.synchronize();
               other.join();
               CHECK_EQ(*member.nccl.failure(), std::string("NCCL was aborted"));
               member.nccl.abort();
               CHECK_THROWS_WITH(
                   member.nccl.broadcast(0, values.at(), values.at(), 4, member.stream.handle()),
                   Error, "NCCL_BCAST: NCCL was aborted");
             },
             {.timeout = 2 * kSecond});
}

TEST(a_member_that_never_connects_is_waited_for_no_longer_than_allowed) {
  const Faults faults("devices=2");
  World world(2);
  NcclOptions options;
  options.timeout = kSecond;
  world.run([&](int rank, Communicator& control) {
    if (rank == 1) {
      say_all_but_connect(control);
      (void)first_problem(control, "");
      return;
    }
    CHECK_THROWS_WITH(NcclCommunicator::connect(control, fake_nccl(), fake_device(0), options),
                      Error, "INIT_NCCL: the other members did not come within 1 seconds");
  });
  CHECK_EQ(communicators_left(), 0);
}

TEST(an_abort_of_the_job_ends_the_connecting) {
  World world(2);
  std::atomic<bool> aborted{false};
  NcclOptions options;
  options.aborted = [&]() -> std::optional<std::string> {
    if (!aborted) return {};
    return "rank 1 is gone";
  };
  world.run([&](int rank, Communicator& control) {
    if (rank == 1) {
      say_all_but_connect(control);
      aborted = true;
      (void)first_problem(control, "");
      return;
    }
    CHECK_THROWS_WITH(NcclCommunicator::connect(control, fake_nccl(), fake_device(0), options),
                      Error, "rank 1 is gone");
  });
}

TEST(different_collectives_are_noticed) {
  CHECK_THROWS_WITH(on_members(2,
                               [](Member& member) {
                                 const OnGpu<float> values(member, {1, 2, 3});
                                 member.nccl.allreduce(values.at(), values.at(),
                                                       member.index == 0 ? 3 : 2, DType::kFloat32,
                                                       ReduceOp::kSum, 1.0, member.stream.handle());
                                 while (!member.nccl.failure()) std::this_thread::yield();
                                 throw Failure(*member.nccl.failure());
                               }),
                    Failure, "failed: invalid usage (the members call different collectives)");
}

}  // namespace hvdtune::testing::test_nccl_communicator
