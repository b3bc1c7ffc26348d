// Gloo between hosts, with shared memory within each: the conformance suite of a hierarchy whose
// columns Gloo carries. Built where Gloo is found; HVDTUNE_GLOO_MODULE is the module that links it.

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "communicator_conformance.h"
#include "hierarchical_world.h"

namespace hvdtune::testing {

/// Ranks as threads, on "hosts" with an arena each, that a factory connects as it would an
/// engine's.
class FactoryWorld {
 public:
  explicit FactoryWorld(int ranks) : FactoryWorld(usual_hosts(ranks), gloo()) {}

  /// `hosts`: by rank.
  FactoryWorld(const std::vector<int>& hosts, const CommunicatorFactory& between)
      : factory_(make_hierarchical_factory({true, true}, between)),
        sessions_(hosts.size()),
        ranks_(hosts.size()) {
    const auto meshes = loopback_mesh(size());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      HostSession& session = sessions_[rank];
      if (!arenas_.contains(hosts[rank])) arenas_[hosts[rank]] = Arena::create(size());
      session.arena = arenas_[hosts[rank]];
      session.mesh = meshes[rank];
      session.host_of = hosts;
      for (std::size_t other = 0; other < hosts.size(); ++other) {
        if (hosts[other] == hosts[rank]) session.local.push_back(static_cast<int>(other));
      }
      session.mesh->set_outside_cause([arena = session.arena] { return arena->abort_status(); });
    }
    std::vector<int> all(hosts.size());
    std::iota(all.begin(), all.end(), 0);
    run_threads(size(),
                [&](int rank) { ranks_[static_cast<std::size_t>(rank)] = connect(all, rank, 0); });
  }

  static CommunicatorFactory gloo() {
    return make_gloo_factory({.module = HVDTUNE_GLOO_MODULE, .interface = ""});
  }

  /// Collective over the members.
  std::unique_ptr<Communicator> connect(const std::vector<int>& members, int index, int number) {
    const int rank = members[static_cast<std::size_t>(index)];
    return factory_({sessions_[static_cast<std::size_t>(rank)], members, index, number, false,
                     Patience{kMillisecond, true}});
  }

  /// body(rank, communicator) on all ranks at once.
  void run(const std::function<void(int, Communicator&)>& body) {
    run_threads(size(), [&](int rank) {
      try {
        body(rank, *ranks_[static_cast<std::size_t>(rank)]);
      } catch (const Failure& failure) {
        // Or the other ranks wait for this one for ever.
        for (const auto& [host, arena] : arenas_) arena->abort("a test failed");
        throw;
      }
    });
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  /// By rank.
  [[nodiscard]] const std::vector<int>& hosts() const { return sessions_.front().host_of; }
  Arena& arena_of(int rank) { return *sessions_[static_cast<std::size_t>(rank)].arena; }

 private:
  CommunicatorFactory factory_;
  std::map<int, std::shared_ptr<Arena>> arenas_;
  std::vector<HostSession> sessions_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

CONFORMS(FactoryWorld);

namespace {

void allreduce_floats(Communicator& communicator, std::vector<float>& data) {
  SegmentList list;
  list.add(data.data(), data.size() * sizeof(float));
  communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
}

TEST(gloo_carries_both_what_is_flat_and_what_is_between_hosts) {
  FactoryWorld world({0, 0, 1}, FactoryWorld::gloo());
  world.run([](int, Communicator& communicator) {
    CHECK_EQ(std::string(communicator.activity(OpKind::kAllreduce)),
             std::string("HIERARCHICAL_ALLREDUCE"));
    CHECK_EQ(std::string(communicator.activity(OpKind::kBroadcast)), std::string("GLOO_BCAST"));
  });
}

TEST(a_set_is_connected_while_the_hosts_others_are_in_an_operation) {
  FactoryWorld world({0, 0, 1, 1, 1}, FactoryWorld::gloo());
  world.run([&](int rank, Communicator& all) {
    if (rank > 1) {
      const auto set = world.connect({2, 3, 4}, rank - 2, 1);  // of one host
      CHECK(set->exchange({rank}) == (std::vector<std::int64_t>{2, 3, 4}));
    }
    std::vector<float> data(100'000, static_cast<float>(rank));
    allreduce_floats(all, data);
    CHECK_EQ(data.back(), 10.0F);
  });
}

TEST(an_abort_on_one_host_ends_the_wait) {
  FactoryWorld world({0, 0, 1, 1}, FactoryWorld::gloo());
  world.run([&](int rank, Communicator& communicator) {
    if (rank == 3) {
      for (const int other : {0, 2}) world.arena_of(other).abort("rank 3 has had enough");
      return;
    }
    std::vector<float> data(100'000, 1);
    CHECK_THROWS_WITH(allreduce_floats(communicator, data), Error, "rank 3 has had enough");
  });
}

/// As over sockets: who waits for another host notes it for its neighbours.
TEST(a_neighbour_that_waits_for_another_host_is_not_absent) {
  FactoryWorld world({0, 0, 1, 1}, FactoryWorld::gloo());
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

}  // namespace
}  // namespace hvdtune::testing
