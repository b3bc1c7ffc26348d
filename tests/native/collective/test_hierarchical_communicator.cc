#include "collective/hierarchy/hierarchical_communicator.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "communicator_conformance.h"
#include "hierarchical_world.h"
#include "reference.h"

namespace hvdtune::testing::test_hierarchical_communicator {

CONFORMS(HierarchicalWorld);

namespace {

SegmentList whole(Bytes& data) {
  SegmentList list;
  list.add(data.data(), data.size());
  return list;
}

void allreduce_floats(Communicator& communicator, std::vector<float>& data) {
  SegmentList list;
  list.add(data.data(), data.size() * sizeof(float));
  communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
}

/// What a rank has sent to another one as data, as its kernel counts it.
std::uint64_t bytes_sent(const Mesh& mesh, int to) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  CHECK_EQ(getsockopt(mesh.peer(to).data.get(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
}

/// How much a host has sent to the others, and its ranks among each other.
struct Traffic {
  std::uint64_t out = 0;
  std::uint64_t within = 0;
};

Traffic traffic_of(HierarchicalWorld& world, int host) {
  Traffic traffic;
  const auto host_of = [&](int rank) { return world.hosts()[static_cast<std::size_t>(rank)]; };
  for (int from = 0; from < world.size(); ++from) {
    for (int to = 0; to < world.size(); ++to) {
      if (from == to || host_of(from) != host) continue;
      (host_of(to) == host ? traffic.within : traffic.out) += bytes_sent(world.mesh(from), to);
    }
  }
  return traffic;
}

}  // namespace

TEST(columns_have_one_member_of_every_host) {
  const HostColumns even({7, 7, 3, 3});
  CHECK_EQ(even.hosts(), 2U);
  CHECK_EQ(even.count(), 2U);
  CHECK(even.columns_of(1, 0) == (std::vector<std::size_t>{1}));
  CHECK_EQ(even.member(1, 0), 1U);
  CHECK_EQ(even.member(1, 1), 3U);
  // Hosts that take turns, of different sizes.
  const HostColumns uneven({0, 1, 2, 2, 1, 1});
  CHECK_EQ(uneven.hosts(), 3U);
  CHECK_EQ(uneven.count(), 3U);
  CHECK(uneven.columns_of(0, 0) == (std::vector<std::size_t>{0, 1, 2}));
  CHECK(uneven.columns_of(0, 2) == (std::vector<std::size_t>{0, 2}));
  CHECK(uneven.on_host(1) == (std::vector<std::size_t>{1, 4, 5}));
  CHECK_EQ(uneven.member(2, 2), 2U);
  CHECK_EQ(uneven.host_of(4), 1U);
}

/// Which tensors share a message depends on timing: it must not show.
TEST(bits_do_not_depend_on_what_shares_the_message) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 1, 2, 2, 1, 0}, {0, 0, 0, 1, 2}, {2, 1, 1, 0}}) {
    HierarchicalWorld world(hosts);
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
      const std::size_t count = 3001;
      const auto inputs = random_inputs(dtype, world.size(), count, 11);
      const Bytes expected =
          expected_by_hosts(dtype, ReduceOp::kSum, inputs, hosts, 1.0, 1.0 / world.size());
      for (const std::size_t before : {0, 1, 5000, 70001}) {
        world.run([&](int rank, Communicator& communicator) {
          Bytes other(before * dtype_size(dtype));
          Bytes data = inputs[static_cast<std::size_t>(rank)];
          SegmentList batch;
          batch.add(other.data(), other.size());
          batch.add(data.data(), data.size());
          communicator.allreduce({batch, batch, dtype, ReduceOp::kSum, 1.0, 1.0 / world.size()});
          check_equal(dtype, data, expected, "a tensor behind others");
        });
      }
    }
  }
}

TEST(hosts_send_as_if_they_were_one_rank_each) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1, 2}, {0, 0, 0, 0, 1, 1}}) {
    HierarchicalWorld world(hosts);
    const auto count =
        static_cast<std::uint64_t>(*std::max_element(hosts.begin(), hosts.end())) + 1;
    const std::size_t elements = 600'000;
    const std::uint64_t message = elements * sizeof(float);
    std::vector<Traffic> before;
    for (std::size_t host = 0; host < count; ++host) {
      before.push_back(traffic_of(world, static_cast<int>(host)));
    }
    world.run([&](int rank, Communicator& communicator) {
      std::vector<float> data(elements, static_cast<float>(rank));
      allreduce_floats(communicator, data);
    });
    const std::uint64_t bound = 2 * (count - 1) * message / count;
    std::uint64_t all = 0;
    for (std::size_t host = 0; host < count; ++host) {
      const Traffic after = traffic_of(world, static_cast<int>(host));
      CHECK_EQ(after.within, before[host].within);
      // Shares are cut at cache lines, and each message has a header.
      CHECK(after.out - before[host].out <= bound + 4096);
      all += after.out - before[host].out;
    }
    CHECK(all >= count * bound);
  }
}

TEST(an_allgather_sends_to_every_host_once) {
  HierarchicalWorld world({0, 0, 1, 1, 1});
  const std::uint64_t before[] = {traffic_of(world, 0).out, traffic_of(world, 1).out};
  const std::size_t bytes = 100'000;
  world.run([&](int rank, Communicator& communicator) {
    Bytes mine(bytes, static_cast<char>(rank));
    std::vector<Bytes> theirs(5, Bytes(bytes));
    std::vector<SegmentList> out;
    for (Bytes& data : theirs) out.push_back(whole(data));
    communicator.allgather({whole(mine), out});
    for (int other = 0; other < 5; ++other) {
      check_equal(DType::kUint8, theirs[static_cast<std::size_t>(other)],
                  Bytes(bytes, static_cast<char>(other)), "allgather");
    }
  });
  CHECK(traffic_of(world, 0).out - before[0] <= 2 * bytes + 1024);
  CHECK(traffic_of(world, 1).out - before[1] <= 3 * bytes + 1024);
}

TEST(what_is_not_hierarchical_is_flat) {
  for (const Hierarchy hierarchy : {Hierarchy{true, false}, Hierarchy{false, true}}) {
    HierarchicalWorld world({0, 0, 1, 1}, hierarchy);
    const auto inputs = random_inputs(DType::kFloat32, 4, 5000, 3);
    const Bytes flat = expected_reduction(DType::kFloat32, ReduceOp::kSum, inputs, 1.0, 1.0);
    const Bytes by_hosts =
        expected_by_hosts(DType::kFloat32, ReduceOp::kSum, inputs, world.hosts(), 1.0, 1.0);
    CHECK(flat != by_hosts);
    const std::uint64_t within = traffic_of(world, 0).within;
    world.run([&](int rank, Communicator& communicator) {
      Bytes data = inputs[static_cast<std::size_t>(rank)];
      communicator.allreduce({whole(data), whole(data), DType::kFloat32, ReduceOp::kSum});
      check_equal(DType::kFloat32, data, hierarchy.allreduce ? by_hosts : flat, "allreduce");
    });
    CHECK_EQ(traffic_of(world, 0).within == within, hierarchy.allreduce);
    world.run([&](int, Communicator& communicator) {
      const std::string allreduce = communicator.activity(OpKind::kAllreduce);
      CHECK_EQ(allreduce == "TCP_ALLREDUCE", !hierarchy.allreduce);
      const std::string allgather = communicator.activity(OpKind::kAllgather);
      CHECK_EQ(allgather == "TCP_ALLGATHER", !hierarchy.allgather);
      CHECK_EQ(std::string(communicator.activity(OpKind::kBroadcast)), std::string("TCP_BCAST"));
    });
  }
}

/// As the engine does it: all members at the same place.
TEST(the_way_may_change_between_operations) {
  HierarchicalWorld world({0, 0, 1, 1});
  const auto inputs = random_inputs(DType::kFloat32, 4, 5000, 3);
  const Bytes flat = expected_reduction(DType::kFloat32, ReduceOp::kSum, inputs, 1.0, 1.0);
  const Bytes by_hosts =
      expected_by_hosts(DType::kFloat32, ReduceOp::kSum, inputs, world.hosts(), 1.0, 1.0);
  world.run([&](int rank, Communicator& communicator) {
    const auto check = [&](const Bytes& expected) {
      Bytes data = inputs[static_cast<std::size_t>(rank)];
      communicator.allreduce({whole(data), whole(data), DType::kFloat32, ReduceOp::kSum});
      check_equal(DType::kFloat32, data, expected, "allreduce");
      CHECK(communicator.exchange({rank}) == (std::vector<std::int64_t>{0, 1, 2, 3}));
    };
    for (int turn = 0; turn < 20; ++turn) {
      communicator.tune({.hierarchy = Hierarchy{turn % 2 == 0, turn % 3 == 0}});
      communicator.tune({.chunk_size = 4096});  // which says nothing about it
      check(turn % 2 == 0 ? by_hosts : flat);
    }
  });
}

TEST(sets_with_members_in_common_take_turns) {
  HierarchicalWorld world({0, 0, 1, 1, 1});
  const std::vector<int> some{0, 1, 3, 4};
  std::vector<std::unique_ptr<HierarchicalCommunicator>> sets(5);
  for (int index = 0; index < 4; ++index) {
    auto& set = sets[static_cast<std::size_t>(some[static_cast<std::size_t>(index)])];
    set = world.connect(some, index, 1);
    set->set_window_shared(true);
  }
  world.run([&](int rank, Communicator& all) {
    all.share_buffers();
    Communicator* const set = sets[static_cast<std::size_t>(rank)].get();
    for (int turn = 0; turn < 50; ++turn) {
      std::vector<float> data(turn % 2 == 0 ? 30'000 : 100, static_cast<float>(rank));
      allreduce_floats(all, data);
      CHECK(std::all_of(data.begin(), data.end(), [](float x) { return x == 10.0F; }));
      if (set == nullptr) continue;
      std::fill(data.begin(), data.end(), static_cast<float>(rank));
      allreduce_floats(*set, data);
      CHECK(std::all_of(data.begin(), data.end(), [](float x) { return x == 8.0F; }));
      CHECK(set->exchange({rank}) == (std::vector<std::int64_t>{0, 1, 3, 4}));
    }
  });
}

TEST(an_abort_on_one_host_ends_the_wait_in_shared_memory_and_at_the_sockets) {
  HierarchicalWorld world({0, 0, 1, 1});
  world.run([&](int rank, Communicator& communicator) {
    // Rank 2 waits for rank 3 in shared memory, 0 and 1 for both over their sockets.
    if (rank == 3) {
      for (const int other : {0, 2}) world.arena_of(other)->abort("rank 3 has had enough");
      return;
    }
    std::vector<float> data(100'000, 1);
    CHECK_THROWS_WITH(allreduce_floats(communicator, data), Error, "rank 3 has had enough");
  });
}

TEST(a_neighbour_tells_who_is_absent) {
  HierarchicalWorld world({0, 0, 1, 1});
  std::atomic<int> exact{0};
  std::atomic<int> wrong{0};
  world.run([&](int rank, Communicator& communicator) {
    communicator.report_absence(5 * kMillisecond, [&](const std::vector<int>& ranks, Nanos) {
      if (ranks == std::vector{3}) exact.fetch_add(1);
      // Rank 2 is there, and waits itself.
      if (rank < 2 && ranks == std::vector{2}) wrong.fetch_add(1);
    });
    std::vector<float> data(10'000, 1);
    while (rank == 3 && exact.load() < 3) std::this_thread::yield();
    allreduce_floats(communicator, data);
  });
  CHECK_EQ(wrong.load(), 0);
}

/// There is one share: rank 1 has nothing to exchange, and waits for rank 0, which waits for
/// rank 2.
TEST(a_neighbour_that_waits_for_another_host_is_not_absent) {
  HierarchicalWorld world({0, 0, 1, 1});
  std::atomic<int> exact{0};
  std::atomic<int> wrong{0};
  world.run([&](int rank, Communicator& communicator) {
    communicator.report_absence(kSecond, [&](const std::vector<int>& ranks, Nanos) {
      if (ranks == std::vector{2}) exact.fetch_add(1);
      if (ranks == std::vector{0}) wrong.fetch_add(1);
    });
    std::vector<float> data(2, 1);
    while (rank == 2 && exact.load() < 3) std::this_thread::yield();
    allreduce_floats(communicator, data);
  });
  CHECK(wrong.load() < 2);  // where the process was stopped for a while, it may look like that once
}

TEST(a_host_of_which_nobody_comes_is_absent) {
  HierarchicalWorld world({0, 0, 1, 1, 2});
  std::atomic<int> two{0};
  std::atomic<int> alone{0};
  world.run([&](int rank, Communicator& communicator) {
    communicator.report_absence(5 * kMillisecond, [&](const std::vector<int>& ranks, Nanos) {
      if (ranks == std::vector{2, 3}) two.fetch_add(1);
      if (ranks == std::vector{4}) alone.fetch_add(1);
    });
    std::vector<float> data(10'000, 1);
    while (rank == 4 && alone.load() < 1) std::this_thread::yield();
    allreduce_floats(communicator, data);
    while ((rank == 2 || rank == 3) && two.load() < 1) std::this_thread::yield();
    allreduce_floats(communicator, data);
  });
}

TEST(waits_of_all_phases_are_timed) {
  HierarchicalWorld world({0, 0, 1});
  std::atomic<bool> go{false};
  std::atomic<int> waited{0};
  world.run([&](int rank, Communicator& communicator) {
    std::vector<float> data(1000, 1);
    communicator.time_waits(true);
    if (rank == 2) {
      while (!go) std::this_thread::yield();
    } else {
      communicator.report_absence(kMillisecond, [&](const std::vector<int>& ranks, Nanos) {
        if (ranks == std::vector{2}) go = true;
      });
    }
    allreduce_floats(communicator, data);
    if (communicator.waited() >= kMillisecond) waited.fetch_add(1);
  });
  CHECK(waited.load() >= 1);  // who has reported
}

/// Ranks 0 and 2 are in no column of rank 1's.
TEST(a_column_that_cannot_be_connected_fails_all_members) {
  const std::vector<int> hosts{0, 0, 1, 1, 2};
  const auto meshes = loopback_mesh(5);
  std::map<int, std::shared_ptr<Arena>> arenas;
  for (const int host : hosts) {
    if (!arenas.contains(host)) arenas[host] = Arena::create(5);
  }
  const CommunicatorFactory factory = make_hierarchical_factory(
      {true, false}, [](const CommunicatorSpec& spec) -> std::unique_ptr<Communicator> {
        const bool column = spec.number >= kMaxProcessSets;
        if (column && spec.members[static_cast<std::size_t>(spec.index)] == 1) {
          throw Error(ErrorKind::kAborted, "no way to the others");
        }
        return make_own_communicator(spec);
      });
  run_threads(5, [&](int rank) {
    HostSession session;
    session.arena = arenas[hosts[static_cast<std::size_t>(rank)]];
    session.mesh = meshes[static_cast<std::size_t>(rank)];
    session.host_of = hosts;
    session.peers.resize(5);
    const std::vector<int> all{0, 1, 2, 3, 4};
    CHECK_THROWS_WITH(factory({session, all, rank, 0, true, Patience{}}), Error,
                      "rank 1: no way to the others");
  });
}

}  // namespace hvdtune::testing::test_hierarchical_communicator
