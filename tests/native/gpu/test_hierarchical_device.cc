// Allreduces of GPUs within each host first, over the fake libraries: members are threads, hosts
// have an arena each and sockets between them.
#include <atomic>
#include <thread>

#include "collective/gpu/hierarchical_device_communicator.h"
#include "hierarchical_world.h"
#include "nccl_members.h"

namespace hvdtune::testing::test_hierarchical_device {

namespace {

/// What a member of a test of several hosts has. The flat communicator is `rest`, too.
struct HostMember {
  int index;
  int size;
  std::shared_ptr<const Device> device;
  HierarchicalDeviceCommunicator& both;
  NcclCommunicator& rest;
  DeviceStream& stream;
  Communicator& control;
};

using HostBody = std::function<void(HostMember&)>;

/// body() on a thread for each element of `hosts`, which says on which host it is.
void on_hosts(const std::vector<int>& hosts, bool by_nccl, const HostBody& body) {
  const std::string gpus = "devices=" + std::to_string(hosts.size());
  const Faults faults(gpus.c_str());
  HierarchicalWorld world(hosts);
  world.run([&](int rank, Communicator& control) {
    NcclOptions options;
    options.timeout = 20 * kSecond;
    options.aborted = [&, rank]() -> std::optional<std::string> {
      if (!world.arena_of(rank)->aborted()) return {};
      return world.arena_of(rank)->abort_status().text;
    };
    const auto device = fake_device(rank);
    const auto connected = [&](Communicator& members) {
      return NcclCommunicator::connect(members, fake_nccl(), device, options);
    };
    const std::optional<HostsFirst> ways = control.hosts_first();
    CHECK(ways.has_value());
    const std::shared_ptr<NcclCommunicator> flat = connected(control);
    auto within = connected(ways->within);
    auto between = by_nccl ? make_column_on_gpus(connected(ways->between))
                           : make_column_through_hosts(ways->between, device, options.aborted);
    HierarchicalDeviceCommunicator both(flat, std::move(within), std::move(between));
    DeviceStream stream(device);
    HostMember member{rank, world.size(), device, both, *flat, stream, control};
    try {
      body(member);
      stream.synchronize();
    } catch (...) {
      both.abort();
      throw;
    }
  });
  CHECK_EQ(communicators_left(), 0);
  CHECK_EQ(live().memory, 0U);
  CHECK_EQ(live().pinned, 0U);
  CHECK_EQ(live().contexts, 0U);
}

template <class T>
struct Values {
  Values(const HostMember& member, const std::vector<T>& values)
      : device(member.device), count(values.size()), memory(device, count * sizeof(T) + 1) {
    put(*device, memory.pointer(), values);
  }
  [[nodiscard]] CudaPointer at(std::size_t index = 0) const {
    return memory.pointer() + index * sizeof(T);
  }
  [[nodiscard]] std::vector<T> values() const { return get<T>(*device, memory.pointer(), count); }

  std::shared_ptr<const Device> device;
  std::size_t count;
  DeviceMemory memory;
};

/// Small whole numbers, so that the order of a sum is of no importance.
template <class T>
std::vector<T> brought(std::size_t count, int member) {
  std::vector<T> values(count);
  for (std::size_t at = 0; at < count; ++at) {
    values[at] = static_cast<T>((at * 5 + static_cast<std::size_t>(member) * 3) % 17);
  }
  return values;
}

template <class T>
std::vector<T> summed(std::size_t count, int members, T factor = 1) {
  std::vector<T> sums(count);
  for (int member = 0; member < members; ++member) {
    const auto values = brought<T>(count, member);
    for (std::size_t at = 0; at < count; ++at) sums[at] += values[at] * factor;
  }
  return sums;
}

const std::vector<std::vector<int>> kLayouts{{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 1, 1, 2, 2}};

template <class T>
void check_sums(DType dtype, double factor) {
  for (const auto& hosts : kLayouts) {
    for (const bool by_nccl : {true, false}) {
      on_hosts(hosts, by_nccl, [&](HostMember& member) {
        // Nothing, too little to share, equal shares, a rest, a long one after a short one.
        for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U, 30001U}) {
          const auto mine = brought<T>(count + 1, member.index);
          const Values<T> in(member, mine);
          const Values<T> out(member, std::vector<T>(count + 1, T{99}));
          const CudaStream stream = member.stream.handle();
          member.both.allreduce(in.at(), out.at(), count, dtype, ReduceOp::kSum, factor, stream);
          member.stream.synchronize();
          auto expected = summed<T>(count, member.size, static_cast<T>(factor));
          expected.push_back(T{99});  // nothing beside it
          CHECK_MSG(out.values() == expected, count << " elements");
          CHECK(in.values() == mine);
          member.both.allreduce(in.at(), in.at(), count, dtype, ReduceOp::kSum, factor, stream);
          member.stream.synchronize();
          expected.back() = mine.back();
          CHECK_MSG(in.values() == expected, count << " elements, in place");
        }
      });
    }
  }
}

}  // namespace

TEST(sums_are_those_of_all_members) {
  check_sums<float>(DType::kFloat32, 0.5);
  check_sums<std::int64_t>(DType::kInt64, 1.0);
}

TEST(the_other_operators_and_operations_are_those_of_all_members) {
  on_hosts({0, 0, 1, 1}, true, [](HostMember& member) {
    const Values<std::uint8_t> smallest(member, brought<std::uint8_t>(9, member.index));
    const CudaStream stream = member.stream.handle();
    member.both.allreduce(smallest.at(), smallest.at(), 9, DType::kUint8, ReduceOp::kMin, 1.0,
                          stream);
    member.stream.synchronize();
    auto expected = brought<std::uint8_t>(9, 0);
    for (int other = 1; other < member.size; ++other) {
      const auto values = brought<std::uint8_t>(9, other);
      for (std::size_t at = 0; at < 9; ++at) expected[at] = std::min(expected[at], values[at]);
    }
    CHECK(smallest.values() == expected);

    const Values<float> one(member, {static_cast<float>(member.index)});
    const Values<float> all(member, std::vector<float>(4));
    member.both.allgather(one.at(), all.at(), sizeof(float), stream);
    member.both.broadcast(3, one.at(), one.at(), sizeof(float), stream);
    const Values<float> shares(member, {1, 2, 3, 4});
    const Values<float> own(member, {0});
    member.both.reducescatter(shares.at(), own.at(), 1, DType::kFloat32, ReduceOp::kSum, 1.0,
                              stream);
    member.stream.synchronize();
    CHECK(all.values() == (std::vector<float>{0, 1, 2, 3}));
    CHECK(one.values() == std::vector<float>{3});
    CHECK(own.values() == std::vector<float>{4 * static_cast<float>(member.index + 1)});
    CHECK_EQ(member.both.granule(), 2U);
    CHECK(!member.both.supports(DType::kInt16, ReduceOp::kSum, 1.0));
    CHECK_EQ(std::string(member.both.activity(OpKind::kAllreduce)),
             std::string("NCCL_HIERARCHICAL_ALLREDUCE"));
    CHECK_EQ(std::string(member.both.activity(OpKind::kBroadcast)), std::string("NCCL_BCAST"));
  });
}

TEST(where_hosts_have_different_numbers_of_members_there_is_no_such_way) {
  HierarchicalWorld world(std::vector<int>{0, 0, 1});
  world.run([](int, Communicator& control) { CHECK(!control.hosts_first().has_value()); });
  HierarchicalWorld flat(std::vector<int>{0, 0, 1, 1}, Hierarchy{false, true});
  flat.run([](int, Communicator& control) {
    CHECK(!control.hosts_first().has_value());
    control.tune({.hierarchy = Hierarchy{true, true}});
    CHECK(control.hosts_first().has_value());
  });
}

TEST(memory_is_enrolled_where_it_is_used_and_taken_back) {
  on_hosts({0, 0, 1, 1}, true, [](HostMember& member) {
    const DeviceMemory memory(member.device, 4096);
    const DevicePiece piece{memory.pointer(), memory.bytes()};
    const auto left = [&] {  // communicators, and addresses that are registered with any
      member.control.barrier();
      const int count = communicators_left();
      member.control.barrier();
      return count;
    };
    const int before = left();
    member.both.enroll(piece);
    CHECK_EQ(left(), before + member.size);
    member.both.withdraw(piece);
    CHECK_EQ(left(), before);
  });
}

/// In one stream, what waits for a member that does not come is behind what another communicator
/// does, and before it.
TEST(an_abort_ends_whatever_waits) {
  for (const bool by_nccl : {true, false}) {
    on_hosts({0, 0, 1, 1}, by_nccl, [by_nccl](HostMember& member) {
      const Values<float> values(member, std::vector<float>(64, 1.0F));
      const CudaStream stream = member.stream.handle();
      const auto reduce = [&](DeviceCommunicator& by) {
        by.allreduce(values.at(), values.at(), 64, DType::kFloat32, ReduceOp::kSum, 1.0, stream);
      };
      reduce(member.both);  // the first makes connections
      reduce(member.rest);
      member.stream.synchronize();
      member.control.barrier();
      if (member.index == 3) return member.both.abort();  // and never comes again
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        member.both.abort();
      });
      // Through host memory the caller waits itself: for its host's other member, or for the
      // column's, whose abort is that of the job.
      if (by_nccl) {
        reduce(member.rest);
        reduce(member.both);
        reduce(member.rest);
      } else if (member.index == 2) {
        CHECK_THROWS_WITH(reduce(member.both), Error, "the exchange between hosts was aborted");
      }
      other.join();
      member.stream.synchronize();
      CHECK(member.both.failure().has_value());
      CHECK_THROWS_WITH(reduce(member.both), Error, "aborted");
    });
  }
}

TEST(an_abort_of_the_job_ends_the_wait_for_the_stream) {
  std::atomic<bool> over = false;
  const Faults faults("devices=1");
  HierarchicalWorld world(std::vector<int>{0, 0, 1, 1});
  world.run([&](int rank, Communicator& control) {
    if (rank != 0) return;
    const auto device = fake_device(0);
    const auto column = make_column_through_hosts(control.hosts_first()->between, device,
                                                  [&]() -> std::optional<std::string> {
                                                    if (!over) return {};
                                                    return "rank 1 has died";
                                                  });
    DeviceStream stream(device);
    const DeviceMemory values(device, 64);
    const Faults slow("devices=1,slow=300");
    std::thread other([&] { over = true; });
    CHECK_THROWS_WITH(
        column->allreduce(values.pointer(), 16, DType::kFloat32, ReduceOp::kSum, stream.handle()),
        Error, "rank 1 has died");
    other.join();
    stream.synchronize();
  });
}

}  // namespace hvdtune::testing::test_hierarchical_device
