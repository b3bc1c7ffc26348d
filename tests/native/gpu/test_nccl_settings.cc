// How communicators are made, and which memory they are told of.
#include <thread>

#include "nccl_members.h"

namespace hvdtune::testing::test_nccl_settings {

namespace {

/// How NCCL was told to make the communicators of two members.
NcclConfig config_of(const NcclOptions& options, const char* faults = "devices=2") {
  {
    World world(2);
    const Faults versions(faults);
    world.run([&](int rank, Communicator& control) {
      const auto nccl = NcclCommunicator::connect(control, fake_nccl(), fake_device(rank), options);
      CHECK(!nccl->failure());
    });
  }
  NcclConfig config(23000);
  fake_nccl_function<void(NcclConfig*)>("fake_nccl_config")(&config);
  return config;
}

}  // namespace

TEST(what_is_set_of_a_communicator_reaches_nccl) {
  NcclConfig config = config_of({});
  CHECK_EQ(config.version, 22700U);
  CHECK_EQ(config.blocking, 0);
  for (const int field : {config.min_ctas, config.max_ctas, config.cga_cluster_size,
                          config.cta_policy, config.traffic_class, config.nvls_ctas}) {
    CHECK_EQ(field, NcclConfig::kUnset);
  }
  NcclOptions options;
  options.min_ctas = 2;
  options.max_ctas = 4;
  options.cga_cluster_size = 0;
  options.cta_policy = 2;
  config = config_of(options);
  CHECK_EQ(config.min_ctas, 2);
  CHECK_EQ(config.max_ctas, 4);
  CHECK_EQ(config.cga_cluster_size, 0);
  CHECK_EQ(config.cta_policy, 2);
}

TEST(a_least_number_of_thread_blocks_needs_no_most) {
  NcclOptions options;
  options.min_ctas = 8;
  const NcclConfig config = config_of(options);
  CHECK_EQ(config.min_ctas, 8);
  CHECK(config.max_ctas >= 32);
}

TEST(an_older_nccl_is_told_nothing_that_it_does_not_know) {
  NcclOptions options;
  options.max_ctas = 4;
  options.cta_policy = 1;
  NcclConfig config = config_of(options, "devices=2,nccl=21903");
  CHECK_EQ(config.version, 21900U);
  CHECK_EQ(config.size, 48U);
  CHECK_EQ(config.max_ctas, 4);
  config = config_of(options, "devices=2,nccl=22707");
  CHECK_EQ(config.cta_policy, 1);
  options.cta_policy = 2;  // 2.28 has it
  config = config_of(options, "devices=2,nccl=22707");
  CHECK_EQ(config.cta_policy, NcclConfig::kUnset);
}

TEST(limits_of_thread_blocks_must_fit) {
  NcclOptions options;
  options.max_ctas = 4;
  options.min_ctas = 8;  // more than the most
  CHECK_THROWS_WITH(on_members(
                        2, [](Member&) {}, options),
                    Failure, "INIT_NCCL failed: invalid argument (minCTAs and maxCTAs)");
}

TEST(registered_memory_is_given_back_in_time) {
  on_members(2, [](Member& member) {
    NcclMemory memory(member.library, member.device, 4096);
    const DevicePiece whole{memory.pointer(), memory.bytes()};
    member.nccl.enroll(whole);
    member.nccl.enroll(whole);
    member.device->clear(whole.at, whole.bytes, member.stream.handle());
    member.nccl.allreduce(whole.at, whole.at, 1024, DType::kFloat32, ReduceOp::kSum, 1.0,
                          member.stream.handle());
    member.stream.synchronize();
    member.nccl.withdraw(whole);
    member.nccl.withdraw(whole);
    memory = NcclMemory();
    CHECK(!member.nccl.failure());
  });
}

namespace {

/// Memory that two members enroll together, use and withdraw: how many of their collectives went
/// through windows.
int in_windows(NcclOptions options, const std::string& wrong) {
  const int before = collectives_in_windows();
  on_members(
      2,
      [](Member& member) {
        for (int round = 0; round < 2; ++round) {
          NcclMemory memory(member.library, member.device, 4096);
          const DevicePiece whole{memory.pointer(), memory.bytes()};
          member.nccl.enroll_together(whole, member.control);
          put(*member.device, whole.at, std::vector<int>(1024, member.index + 1));
          member.nccl.allreduce(whole.at, whole.at, 1024, DType::kInt32, ReduceOp::kSum, 1.0,
                                member.stream.handle());
          member.stream.synchronize();
          CHECK(get<int>(*member.device, whole.at, 1024) == std::vector<int>(1024, 3));
          member.control.barrier();
          member.nccl.withdraw(whole);
          member.nccl.withdraw(whole);
        }
        CHECK(!member.nccl.failure());
      },
      std::move(options), wrong);
  return collectives_in_windows() - before;
}

}  // namespace

TEST(memory_that_all_use_alike_becomes_a_window) {
  CHECK_EQ(in_windows({}, ""), 4);
  CHECK_EQ(in_windows({}, ",nccl=22700"), 4);
}

TEST(where_there_is_no_window_memory_is_registered_without) {
  for (const char* const wrong : {",nccl=22605", ",no-window", ",null-window",
                                  ",no-window,no-register", ",nccl=21903,no-register"}) {
    CHECK_EQ(in_windows({}, wrong), 0);
  }
  NcclOptions options;
  options.share_gpu = true;
  CHECK_EQ(in_windows(options, ""), 0);
}

TEST(a_member_that_opens_no_window_is_waited_for_no_longer_than_allowed) {
  on_members(
      2,
      [](Member& member) {
        NcclMemory memory(member.library, member.device, 4096);
        if (member.index == 1) {
          (void)member.control.exchange({1});  // says that it will
        } else {
          CHECK_THROWS_WITH(
              member.nccl.enroll_together({memory.pointer(), memory.bytes()}, member.control),
              Error, "ncclCommWindowRegister: the other members did not come within 1 seconds");
        }
        member.control.barrier();
        member.nccl.abort();
      },
      {.timeout = kSecond});
}

TEST(windows_are_used_at_the_same_place) {
  CHECK_THROWS_WITH(on_members(2,
                               [](Member& member) {
                                 NcclMemory memory(member.library, member.device, 4096);
                                 const DevicePiece whole{memory.pointer(), memory.bytes()};
                                 member.nccl.enroll_together(whole, member.control);
                                 const CudaPointer at = whole.at + (member.index == 0 ? 0 : 512);
                                 member.nccl.allreduce(at, at, 16, DType::kInt32, ReduceOp::kSum,
                                                       1.0, member.stream.handle());
                                 while (!member.nccl.failure()) std::this_thread::yield();
                                 const std::string why = *member.nccl.failure();
                                 member.nccl.abort();
                                 throw Failure(why);
                               }),
                    Failure, "the members call different collectives");
}

}  // namespace hvdtune::testing::test_nccl_settings
