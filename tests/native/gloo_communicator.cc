// Built where Gloo is found; HVDTUNE_GLOO_MODULE is the module that links it.

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "check.h"
#include "collective/communicator_factory.h"
#include "communicator_conformance.h"
#include "threads.h"

namespace hvdtune::testing {

/// All ranks as threads, each with connections of its own.
class GlooWorld {
 public:
  explicit GlooWorld(int ranks) : ranks_(static_cast<std::size_t>(ranks)), crew_(ranks) {
    session_.arena = Arena::create(ranks);
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    crew_.run(
        [&](int rank) { ranks_[static_cast<std::size_t>(rank)] = connect(members, rank, 0); });
  }

  void run(const std::function<void(int, Communicator&)>& body) {
    crew_.run([&](int rank) {
      try {
        body(rank, *ranks_[static_cast<std::size_t>(rank)]);
      } catch (const Failure& failure) {
        session_.arena->abort("a test failed");  // or the other ranks wait for this one for ever
        throw;
      }
    });
  }

  /// Collective over the members.
  std::unique_ptr<Communicator> connect(const std::vector<int>& members, int index, int number) {
    return make_gloo_factory({.module = HVDTUNE_GLOO_MODULE, .interface = ""})(
        {session_, members, index, number, false, Patience{}});
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  Arena& arena() { return *session_.arena; }

 private:
  HostSession session_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  Crew crew_;
};

CONFORMS(GlooWorld);

namespace {

TEST(a_process_set_is_connected_while_others_are_in_an_operation) {
  GlooWorld world(3);
  world.run([&](int rank, Communicator& all) {
    if (rank > 0) {
      const auto set = world.connect({1, 2}, rank - 1, 1);
      CHECK(set->exchange({rank}) == (std::vector<std::int64_t>{1, 2}));
    }
    CHECK(all.exchange({rank}) == (std::vector<std::int64_t>{0, 1, 2}));
  });
}

TEST(an_abort_ends_the_wait) {
  GlooWorld world(2);
  world.run([&](int rank, Communicator& communicator) {
    if (rank == 1) return world.arena().abort("rank 1 has had enough");
    std::vector<float> data(100000, 1);
    SegmentList list;
    list.add(data.data(), data.size() * sizeof(float));
    const auto reduce = [&] {
      communicator.allreduce({list, list, DType::kFloat32, ReduceOp::kSum});
    };
    CHECK_THROWS_WITH(reduce(), Error, "rank 1 has had enough");
    CHECK_THROWS_WITH(communicator.barrier(), Error, "rank 1 has had enough");
  });
}

TEST(one_of_those_who_wait_reports_who_is_absent) {
  GlooWorld world(3);
  std::atomic<int> reports{0};
  world.run([&](int rank, Communicator& communicator) {
    communicator.report_absence(5 * kMillisecond, [&](const std::vector<int>& ranks, Nanos) {
      // Others may be late for a moment, too.
      if (ranks == std::vector{2}) reports.fetch_add(1);
    });
    while (rank == 2 && reports.load() < 2) std::this_thread::yield();
    communicator.barrier();
  });
}

TEST(what_cannot_be_connected_fails_on_all_ranks) {
  HostSession session;
  session.arena = Arena::create(2);
  run_threads(2, [&](int rank) {
    // One of them cannot even listen.
    const auto factory = make_gloo_factory(
        {.module = HVDTUNE_GLOO_MODULE, .interface = rank == 1 ? "no-such-interface" : ""});
    CHECK_THROWS_WITH(factory({session, {0, 1}, rank, 0, true, Patience{}}), Error,
                      "Gloo cannot connect the ranks");
  });
  run_threads(2, [&](int rank) {
    const auto factory = make_gloo_factory({.module = "/no/such/module.so", .interface = ""});
    CHECK_THROWS_WITH(factory({session, {0, 1}, rank, 0, true, Patience{}}), Error,
                      "Gloo cannot be loaded: /no/such/module.so");
  });
}

}  // namespace
}  // namespace hvdtune::testing
