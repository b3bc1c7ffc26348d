#include "collective/sockets/socket_communicator.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "all_ranks_data.h"
#include "check.h"
#include "collective/adasum.h"
#include "communicator_conformance.h"
#include "reference.h"
#include "shm_world.h"
#include "socket_world.h"

namespace hvdtune::testing::test_socket_communicator {

CONFORMS(SocketWorld);

namespace {

void allreduce_floats(Communicator& communicator, std::vector<float>& data) {
  SegmentList list;
  list.add(data.data(), data.size() * sizeof(float));
  communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
}

/// As if the rank's process had ended: its kernel closes what it had open.
void end_process(const Mesh& mesh) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    shutdown(mesh.peer(rank).notices.get(), SHUT_RDWR);
    shutdown(mesh.peer(rank).data.get(), SHUT_RDWR);
  }
}

/// As if the rank's host had lost its network: its kernel sees nothing of what comes.
void cut_off(const Mesh& mesh) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    for (const int fd : {mesh.peer(rank).notices.get(), mesh.peer(rank).data.get()}) {
      CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
    }
  }
}

}  // namespace

/// Members that share memory and members that do not get the same bits.
TEST(results_are_those_of_shared_memory) {
  for (const int ranks : {2, 3, 5, 8}) {
    World shared(ranks);
    SocketWorld apart(ranks);
    for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32}) {
      const std::size_t count = 70001;
      const auto inputs = random_inputs(dtype, ranks, count, 3);
      std::vector<Bytes> results[2] = {inputs, inputs};
      const auto reduce = [&](std::vector<Bytes>& data) {
        return [&, dtype](int rank, Communicator& communicator) {
          SegmentList list;
          list.add(data[static_cast<std::size_t>(rank)].data(), count * dtype_size(dtype));
          communicator.allreduce({list, list, dtype, ReduceOp::kSum, 1.0, 1.0 / ranks});
        };
      };
      shared.run(reduce(results[0]));
      apart.run(reduce(results[1]));
      CHECK(results[0] == results[1]);
    }
  }
}

TEST(adasum_is_that_of_shared_memory) {
  for (const int ranks : {1, 2, 4, 8}) {
    World shared(ranks);
    SocketWorld apart(ranks);
    const std::vector<std::size_t> elements{3, 0, 1, 5000};
    const auto inputs = random_inputs(DType::kFloat32, ranks, 5004, 4);
    std::vector<Bytes> results[2] = {inputs, inputs};
    const auto reduce = [&](std::vector<Bytes>& data) {
      return [&](int rank, Communicator& communicator) {
        SegmentList list;
        Bytes& mine = data[static_cast<std::size_t>(rank)];
        list.add(mine.data(), mine.size());
        adasum(communicator, {list, list, elements, DType::kFloat32, 0.5, 2.0});
      };
    };
    shared.run(reduce(results[0]));
    apart.run(reduce(results[1]));
    CHECK(results[0] == results[1]);
  }
}

/// Messages that are far longer than what the connections hold.
TEST(long_messages) {
  constexpr std::size_t kCount = 3'000'001;
  SocketWorld world(3);
  world.run([&](int rank, SocketCommunicator& communicator) {
    std::vector<float> data(kCount, static_cast<float>(rank + 1));
    allreduce_floats(communicator, data);
    CHECK(std::all_of(data.begin(), data.end(), [](float value) { return value == 6; }));
    SegmentList list;
    list.add(data.data(), data.size() * sizeof(float));
    std::fill(data.begin(), data.end(), static_cast<float>(rank));
    communicator.broadcast({2, list, list});
    CHECK(std::all_of(data.begin(), data.end(), [](float value) { return value == 2; }));
    std::vector<float> gathered(3 * kCount);
    std::vector<SegmentList> out(3);
    std::fill(data.begin(), data.end(), static_cast<float>(rank));
    for (std::size_t member = 0; member < 3; ++member) {
      out[member].add(&gathered[member * kCount], kCount * sizeof(float));
    }
    communicator.allgather({list, out});
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      CHECK_EQ(gathered[i], static_cast<float>(i / kCount));
    }
  });
}

TEST(waiters_that_stay_awake_get_the_same_results) {
  for (const Patience patience :
       {Patience{50 * kMicrosecond, false}, Patience{50 * kMicrosecond, true}}) {
    SocketWorld world(3, patience);
    world.run([](int rank, SocketCommunicator& communicator) {
      for (int round = 0; round < 200; ++round) {
        std::vector<float> data(10, static_cast<float>(rank + round));
        allreduce_floats(communicator, data);
        CHECK_EQ(data[9], static_cast<float>(3 + 3 * round));
      }
    });
  }
}

TEST(overlapping_process_sets_share_the_connections) {
  const std::vector<std::vector<int>> sets{{0, 1, 2, 3}, {0, 2}, {1, 2, 3}};
  const auto meshes = loopback_mesh(4);
  run_threads(4, [&](int rank) {
    std::vector<std::unique_ptr<SocketCommunicator>> mine;
    for (std::size_t set = 0; set < sets.size(); ++set) {
      const auto found = std::find(sets[set].begin(), sets[set].end(), rank);
      mine.push_back(nullptr);
      if (found == sets[set].end()) continue;
      mine.back() = std::make_unique<SocketCommunicator>(
          meshes[static_cast<std::size_t>(rank)], sets[set],
          static_cast<int>(found - sets[set].begin()), static_cast<int>(set), Patience{});
      mine.back()->tune({4096});
    }
    std::mt19937_64 shared(10);
    for (int round = 0; round < 300; ++round) {
      const std::size_t set = shared() % sets.size();
      const std::size_t count = 1 + shared() % 5000;
      if (!mine[set]) continue;
      float sum = 0;
      for (const int member : sets[set]) sum += static_cast<float>(member + round);
      std::vector<float> data(count, static_cast<float>(rank + round));
      allreduce_floats(*mine[set], data);
      for (const float value : data) {
        if (value == sum) continue;
        meshes[static_cast<std::size_t>(rank)]->abort("a test failed");
        CHECK_EQ(value, sum);
      }
    }
  });
}

/// Whoever ends, and whoever waits for it: all get the same sentence.
TEST(a_rank_that_dies_fails_all_others_with_its_name) {
  for (const int dying : {0, 2}) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{1'000'000}}) {
      SocketWorld world(4);
      world.run([&](int rank, SocketCommunicator& communicator) {
        std::vector<float> data(count, 1);
        if (rank == dying) {
          allreduce_floats(communicator, data);
          return end_process(*world.mesh(rank));
        }
        const std::string cause =
            world.mesh(rank)->name(dying) + " died: its process ended without shutting down";
        CHECK(cause.find("rank " + std::to_string(dying) + " (pid ") == 0);
        CHECK(cause.find("on host" + std::to_string(dying)) != std::string::npos);
        const auto go_on = [&] {
          while (true) allreduce_floats(communicator, data);
        };
        CHECK_THROWS_WITH(go_on(), Error, cause);
        // And so does everything from now on.
        CHECK_THROWS_WITH(communicator.barrier(), Error, cause);
        CHECK_THROWS_WITH(allreduce_floats(communicator, data), Error, cause);
      });
    }
  }
}

TEST(an_abort_reaches_those_who_wait_for_somebody_else) {
  // Rank 0 waits for rank 1, which waits in another operation for rank 2, which gives up.
  const auto meshes = loopback_mesh(3);
  run_threads(3, [&](int rank) {
    const auto& mesh = meshes[static_cast<std::size_t>(rank)];
    std::vector<float> data(10, 1);
    if (rank == 2) return mesh->abort("rank 2 has had enough");
    const std::vector<int> members = rank == 0 ? std::vector{0, 1} : std::vector{1, 2};
    SocketCommunicator communicator(mesh, members, 0, rank, Patience{});
    CHECK_THROWS_WITH(allreduce_floats(communicator, data), Error, "rank 2 has had enough");
    CHECK_EQ(mesh->abort_status().text, std::string("rank 2 has had enough"));
  });
}

TEST(an_abort_from_another_thread_ends_the_wait) {
  const auto meshes = loopback_mesh(2);
  SocketCommunicator communicator(meshes[0], {0, 1}, 0, 0, Patience{});
  std::thread other([&] { meshes[0]->abort("the user pressed a key"); });
  CHECK_THROWS_WITH(communicator.barrier(), Error, "the user pressed a key");
  other.join();
}

TEST(a_rank_that_shuts_down_is_not_dead_but_missed) {
  auto meshes = loopback_mesh(2);
  SocketCommunicator communicator(meshes[0], {0, 1}, 0, 0, Patience{});
  run_threads(2, [&](int rank) {
    if (rank == 0) return communicator.barrier();
    SocketCommunicator(meshes[1], {0, 1}, 1, 0, Patience{}).barrier();
    meshes[1].reset();
  });
  CHECK_THROWS_WITH(communicator.barrier(), Error, "has shut down, but rank 0 still needs it");
}

/// Its kernel says nothing: no end of the connection, no answer.
TEST(a_host_that_vanishes_ends_the_wait) {
  const auto meshes = loopback_mesh(3, [](RendezvousOptions& options) {
    // Its own kernel must not give up first: what it says then would still be heard here.
    options.vanish = options.rank == 2 ? 600 * kSecond : kSecond;
  });
  std::atomic<int> failed{0};
  run_threads(3, [&](int rank) {
    const auto& mesh = meshes[static_cast<std::size_t>(rank)];
    SocketCommunicator communicator(mesh, {0, 1, 2}, rank, 0, Patience{});
    std::vector<float> data(100'000, 1);
    if (rank == 2) {
      allreduce_floats(communicator, data);
      cut_off(*mesh);
      while (failed.load() < 2) std::this_thread::yield();
      return;
    }
    std::string text;
    try {
      while (true) allreduce_floats(communicator, data);
    } catch (const Error& error) {
      text = error.what();
    }
    failed.fetch_add(1);
    CHECK_EQ(text, mesh->name(2) +
                       " is lost: it has not answered for 1 s: its host is down, or the "
                       "network between the hosts is cut.");
  });
}

TEST(one_of_those_who_wait_reports_who_is_absent) {
  SocketWorld world(4);
  std::atomic<int> reports{0};
  world.run([&](int rank, SocketCommunicator& communicator) {
    communicator.report_absence(5 * kMillisecond,
                                [&, rank](const std::vector<int>& ranks, Nanos waited) {
                                  // Others may be late for a moment, too.
                                  if (ranks != std::vector{2}) return;
                                  CHECK_EQ(rank, 0);
                                  CHECK(waited >= 5 * kMillisecond);
                                  reports.fetch_add(1);
                                });
    std::vector<float> data(300'000, 1);
    while (rank == 2 && reports.load() < 3) std::this_thread::yield();
    allreduce_floats(communicator, data);
  });
  CHECK(reports.load() >= 3);
}

TEST(the_root_of_a_broadcast_is_absent_not_those_who_pass_it_on) {
  SocketWorld world(4);
  std::atomic<int> reports{0};
  world.run([&](int rank, SocketCommunicator& communicator) {
    communicator.report_absence(5 * kMillisecond, [&](const std::vector<int>& ranks, Nanos) {
      // Once the root has come, others may be late for a moment.
      if (reports.load() > 0) return;
      CHECK(ranks == std::vector{3});
      reports.fetch_add(1);
    });
    std::vector<float> data(100'000, 1);
    SegmentList list;
    list.add(data.data(), data.size() * sizeof(float));
    while (rank == 3 && reports.load() < 1) std::this_thread::yield();
    communicator.broadcast({3, list, list});
  });
}

TEST(waits_are_timed_when_asked_for) {
  SocketWorld world(2);
  std::atomic<bool> go{false};
  world.run([&](int rank, SocketCommunicator& communicator) {
    communicator.barrier();
    CHECK_EQ(communicator.waited(), 0);
    if (rank == 0) {
      communicator.report_absence(kMillisecond, [&](const std::vector<int>&, Nanos) { go = true; });
      communicator.time_waits(true);
      communicator.barrier();
      CHECK(communicator.waited() >= kMillisecond);
    } else {
      while (!go) std::this_thread::yield();
      communicator.barrier();
    }
  });
}

/// A bug, not a mistake of a user's; but it must not end in wrong numbers.
TEST(members_in_different_operations_end_with_an_error) {
  SocketWorld world(2);
  world.run([](int rank, SocketCommunicator& communicator) {
    std::vector<float> data(rank == 0 ? 10 : 11, 1);
    CHECK_THROWS_WITH(allreduce_floats(communicator, data), Error, "do not agree about the");
  });
  SocketWorld other(2);
  other.run([](int rank, SocketCommunicator& communicator) {
    std::vector<float> data(10, 1);
    const auto operation = [&] {
      if (rank == 0) return communicator.barrier();
      allreduce_floats(communicator, data);
    };
    CHECK_THROWS_WITH(operation(), Error, "do not agree about the order");
  });
}

TEST(an_exception_in_the_middle_of_an_operation_ends_the_job) {
  SocketWorld world(2);
  world.run([](int rank, SocketCommunicator& communicator) {
    std::vector<SegmentList> out(2);
    const std::vector<std::int64_t> one{1};
    char byte = 0;
    SegmentList in;
    in.add(&byte, 1);
    const Lengths lengths{one, [&](const std::vector<std::int64_t>&) -> std::size_t {
                            if (rank == 1) throw Error(ErrorKind::kInvalidArgument, "no memory");
                            for (SegmentList& list : out) list.add(&byte, 1);
                            return 0;
                          }};
    if (rank == 1) {
      CHECK_THROWS_WITH(communicator.allgather({in, out, &lengths}), Error, "no memory");
      CHECK_THROWS_WITH(communicator.barrier(), Error, "left an operation in the middle");
    } else {
      const auto go_on = [&] {
        communicator.allgather({in, out, &lengths});
        communicator.barrier();
      };
      CHECK_THROWS_WITH(go_on(), Error, "rank 1");
    }
  });
}

}  // namespace hvdtune::testing::test_socket_communicator
