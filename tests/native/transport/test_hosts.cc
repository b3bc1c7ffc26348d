// Engines whose ranks are kept apart as on several hosts: an arena for each host, bridges between
// them, and sockets for what ranks of several hosts exchange.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "engine_job.h"
#include "transport/sockets/tcp_listener.h"

namespace hvdtune::testing::test_hosts {
namespace {

int free_port() {
  return TcpListener({TcpAddress::of_digits("127.0.0.1", 0)}, "probe").addresses().front().port();
}

/// run_job() with so many ranks on each host.
void run_hosts(const std::vector<int>& hosts, const std::function<void(int, Engine&)>& body,
               const Adjust& adjust = {}) {
  const int size = std::accumulate(hosts.begin(), hosts.end(), 0);
  std::vector<int> host_of;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    host_of.insert(host_of.end(), static_cast<std::size_t>(hosts[host]), static_cast<int>(host));
  }
  const int port = free_port();
  run_job(size, body, [&](EngineOptions& options) {
    NetworkOptions network;
    network.host = "127.0.0.1";
    network.port = port;
    network.secret = "the secret of this job";
    network.version = "1";
    const int host = host_of[static_cast<std::size_t>(options.meeting.rank)];
    network.host_id = "host" + std::to_string(host);
    options.network = network;
    options.meeting.hostname = network.host_id;
    options.local_size = hosts[static_cast<std::size_t>(host)];
    if (adjust) adjust(options);
  });
}

float sum_in(Engine& engine, std::uint32_t set, const std::string& name, int rank,
             std::size_t elements, bool blocking = false) {
  std::vector<float> data(elements, static_cast<float>(rank + 1));
  Submission submission = in_place(OpKind::kAllreduce, name, data);
  submission.request.process_set = set;
  finish(engine, blocking ? engine.submit_blocking(std::move(submission))
                          : engine.submit(std::move(submission)));
  CHECK(std::all_of(data.begin(), data.end(), [&](float x) { return x == data[0]; }));
  return data[0];
}

void check_sums(const std::vector<int>& hosts, const Adjust& adjust = {}) {
  const int size = std::accumulate(hosts.begin(), hosts.end(), 0);
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  run_hosts(
      hosts,
      [&](int rank, Engine& engine) {
        for (int turn = 0; turn < 20; ++turn) {
          for (const std::size_t elements : {1UL, 1000UL, 100'000UL}) {
            const std::string name = "t" + std::to_string(elements);
            CHECK_EQ(sum_in(engine, 0, name, rank, elements, turn % 2 == 0), expected);
          }
        }
      },
      adjust);
}

void hierarchical(EngineOptions& options) {
  options.data_plane = make_hierarchical_factory({true, true});
  options.settings.hierarchical_allreduce = true;
  options.settings.hierarchical_allgather = true;
}

/// Another communicator, which notes when its buffers are shared.
class Noting final : public Communicator {
 public:
  Noting(std::unique_ptr<Communicator> other, std::atomic<bool>& shared)
      : other_(std::move(other)), shared_(shared) {}

  [[nodiscard]] int size() const override { return other_->size(); }
  [[nodiscard]] int index() const override { return other_->index(); }
  [[nodiscard]] const char* activity(OpKind kind) const override { return other_->activity(kind); }
  PhaseTimes allreduce(const AllreduceJob& job) override { return other_->allreduce(job); }
  PhaseTimes broadcast(const BroadcastJob& job) override { return other_->broadcast(job); }
  PhaseTimes allgather(const AllgatherJob& job) override { return other_->allgather(job); }
  PhaseTimes alltoall(const AlltoallJob& job) override { return other_->alltoall(job); }
  PhaseTimes reducescatter(const ReducescatterJob& job) override {
    return other_->reducescatter(job);
  }
  PhaseTimes sendrecv(const SendrecvJob& job) override { return other_->sendrecv(job); }
  void barrier() override { other_->barrier(); }
  void tune(const Tuning& tuning) override { other_->tune(tuning); }
  void report_absence(Nanos patience, AbsenceReport report) override {
    other_->report_absence(patience, std::move(report));
  }
  void share_buffers() override {
    other_->share_buffers();
    shared_ = true;
  }

 private:
  std::unique_ptr<Communicator> other_;
  std::atomic<bool>& shared_;
};

/// Each host passes on to one other at most: what the last says goes through all of them.
void in_a_chain(EngineOptions& options) { options.host_fanout = 1; }

void check_changing_sets(const Adjust& adjust, const std::vector<int>& hosts = {2, 2}) {
  const std::vector<std::vector<std::int32_t>> kinds{{0, 1}, {2, 3},    {1, 2},
                                                     {0, 3}, {1, 2, 3}, {0, 1, 3}};
  run_hosts(
      hosts,
      [&](int rank, Engine& engine) {
        for (std::size_t turn = 0; turn < 30; ++turn) {
          const auto& ranks = kinds[turn % kinds.size()];
          const auto set = static_cast<std::uint32_t>(
              finish(engine, engine.add_process_set(ranks))->numbers.at(0));
          float expected = 0;
          for (const int member : ranks) expected += static_cast<float>(member + 1);
          if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
            for (int again = 0; again < 5; ++again) {
              CHECK_EQ(sum_in(engine, set, "a", rank, 100, again > 2), expected);
              CHECK_EQ(sum_in(engine, set, "b", rank, 100'000), expected);
            }
          }
          CHECK_EQ(sum_in(engine, 0, "all", rank, 1000), 10.0F);
          finish(engine, engine.remove_process_set(set));
        }
      },
      adjust);
}

/// Four ranks in all.
void check_abort(const std::vector<int>& hosts, const Adjust& adjust = {}) {
  for (const int culprit : {0, 1, 3}) {
    std::barrier all_have_the_sum(4);
    const auto body = [&](int rank, Engine& engine) {
      CHECK_EQ(sum_in(engine, 0, "before", rank, 10), 10.0F);
      all_have_the_sum.arrive_and_wait();
      std::vector<float> data(10);
      std::int64_t handle = -1;
      try {
        if (rank == culprit) engine.abort("for a test");
        handle = engine.submit(in_place(OpKind::kAllreduce, "never", data));
      } catch (const Error& error) {
        return check_contains(error.what(), "rank " + std::to_string(culprit) + " ended the job");
      }
      const Status status = failure(engine, handle);
      check_contains(status.text, "rank " + std::to_string(culprit) + " ended the job: for a test");
    };
    run_hosts(hosts, body, adjust);
  }
}

void check_abort_in_an_operation(const Adjust& adjust) {
  const auto body = [](int rank, Engine& engine) {
    std::vector<float> data(1'000'000, 1.0F);
    std::thread ends;
    std::atomic<bool> stop{false};
    if (rank == 2) {
      ends = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        engine.abort("for a test");
      });
    }
    try {
      while (!stop) {
        const auto handle = engine.submit(in_place(OpKind::kAllreduce, "again", data));
        CHECK(engine.wait(handle, monotonic_now() + kPatience));
        const Status status = engine.take(handle)->status;
        if (status.ok()) continue;
        check_contains(status.text, "rank 2 ended the job: for a test");
        stop = true;
      }
    } catch (const Error& error) {
      check_contains(error.what(), "rank 2 ended the job: for a test");
    }
    if (ends.joinable()) ends.join();
  };
  run_hosts({1, 2}, body, adjust);
}

std::string stall_reports(Engine& engine) {
  const std::string status = engine.status();
  const std::string key = "\"stall_reports\":";
  const std::size_t at = status.find(key);
  CHECK_MSG(at != std::string::npos, status);
  return status.substr(at, status.find(',', at) - at);
}

/// Ranks 2 and 3, of four, are on one host, which is not rank 0's. Rank 3 keeps rank 2 waiting.
void check_stall_within_a_host(const std::vector<int>& hosts, const Adjust& adjust = {}) {
  std::atomic<bool> submitted{false};
  std::atomic<bool> reported{false};
  const auto await_asleep = [](const auto& happened) {
    const Nanos deadline = monotonic_now() + kPatience;
    while (!happened()) {
      CHECK(monotonic_now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  const auto body = [&](int rank, Engine& engine) {
    std::vector<float> data(10, 1.0F);
    Submission again = in_place(OpKind::kAllreduce, "x", data);
    again.request.process_set = 1;
    std::int64_t handle = 0;
    if (rank >= 2) CHECK_EQ(sum_in(engine, 1, "x", rank, 10), 7.0F);  // from then on it has a slot
    if (rank == 2) {
      // Until then the host may have other things to tell.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      handle = engine.submit(std::move(again));
      submitted = true;
    }
    if (rank == 0) {
      await_asleep([&] { return submitted.load(); });
      const std::string before = stall_reports(engine);
      await_asleep([&] { return stall_reports(engine) != before; });
      reported = true;
    }
    await_asleep([&] { return reported.load(); });
    if (rank == 3) handle = engine.submit(std::move(again));
    if (rank >= 2) finish(engine, handle);
    CHECK_EQ(sum_in(engine, 0, "all are here", rank, 1), 10.0F);
  };
  run_hosts(hosts, body, [&](EngineOptions& options) {
    options.process_sets = {{2, 3}};
    options.stall.enabled = true;
    options.stall.warning = 200 * kMillisecond;
    if (adjust) adjust(options);
  });
}

}  // namespace

TEST(sums_of_all_hosts) {
  for (const std::vector<int>& hosts :
       {std::vector{1, 1}, {2, 2}, {1, 3}, {3, 1}, {1, 1, 1, 1}, {2, 1, 2}}) {
    check_sums(hosts);
  }
}

TEST(sums_within_hosts_first) {
  for (const std::vector<int>& hosts : {std::vector{1, 1}, {2, 2}, {3, 1}, {2, 1, 2}}) {
    check_sums(hosts, hierarchical);
  }
}

TEST(sums_of_hosts_in_a_chain) {
  for (const std::vector<int>& hosts : {std::vector{1, 1, 1}, {2, 1, 2}, {1, 1, 1, 1, 1}}) {
    check_sums(hosts, in_a_chain);
  }
}

TEST(sets_in_a_chain_come_and_go) { check_changing_sets(in_a_chain, {1, 1, 1, 1}); }

TEST(ranks_may_shut_down_at_once) {
  const auto nothing = [](int, Engine&) {};
  for (const std::vector<int>& hosts : {std::vector{1, 1}, {2, 2}, {1, 1, 1, 1, 1}, {3}}) {
    for (int turn = 0; turn < 5; ++turn) run_hosts(hosts, nothing);
  }
  for (int turn = 0; turn < 5; ++turn) run_hosts({1, 1, 1, 1}, nothing, in_a_chain);
}

/// Rank 0's host waits for the others some seconds, and no longer: they find all they need.
TEST(a_host_that_is_slow_to_start_may_find_the_job_over) {
  std::atomic<bool> gone{false};
  const auto body = [&](int rank, Engine& engine) {
    engine.shutdown();
    gone = gone || rank == 0;
    CHECK_MSG(engine.state().kind == ErrorKind::kShutdown, engine.state().text);
  };
  run_hosts({1, 1}, body, [&](EngineOptions& options) {
    if (options.meeting.rank == 0) return;
    options.data_plane = [&](const CommunicatorSpec& spec) {
      while (!gone) std::this_thread::yield();
      return make_own_communicator(spec);
    };
  });
}

TEST(all_on_one_host_after_all) {
  run_hosts({3}, [](int rank, Engine& engine) {
    CHECK(engine.hosts() == std::vector<int>({0, 0, 0}));
    CHECK_EQ(sum_in(engine, 0, "t", rank, 1000), 6.0F);
  });
}

TEST(slots_are_used_again_on_all_hosts) {
  run_hosts(
      {2, 2},
      [](int rank, Engine& engine) {
        for (int turn = 0; turn < 60; ++turn) {
          const std::string name = "t" + std::to_string(turn % 9);
          CHECK_EQ(sum_in(engine, 0, name, rank, 10, turn % 3 == 0), 10.0F);
          // Goes past the coordinator, within each host.
          CHECK_EQ(sum_in(engine, 1 + rank / 2, "of one host " + name, rank, 10, true),
                   rank < 2 ? 3.0F : 7.0F);
        }
        // Whoever shuts down ends the job for all.
        sum_in(engine, 0, "all are here", rank, 1);
      },
      [](EngineOptions& options) {
        options.coordinator.cache_capacity = 4;
        options.process_sets = {{0, 1}, {2, 3}};
      });
}

TEST(sets_within_and_across_hosts_come_and_go) { check_changing_sets({}); }

TEST(hierarchical_sets_come_and_go) { check_changing_sets(hierarchical); }

/// While Gloo connects a set, its members tell each other their addresses through these buffers.
TEST(buffers_are_shared_before_a_new_set_is_connected) {
  std::array<std::atomic<bool>, 4> shared{};
  std::atomic<int> connected{0};
  std::atomic<bool> early{false};
  run_hosts(
      {2, 2},
      [](int rank, Engine& engine) {
        CHECK_EQ(sum_in(engine, 0, "all", rank, 1000), 10.0F);
        finish(engine, engine.add_process_set({0, 1}));
      },
      [&](EngineOptions& options) {
        hierarchical(options);
        const auto self = static_cast<std::size_t>(options.meeting.rank);
        options.data_plane = [&, self, connect = options.data_plane](
                                 const CommunicatorSpec& spec) -> std::unique_ptr<Communicator> {
          std::atomic<bool>& its = shared[self];
          if (spec.number == 0) return std::make_unique<Noting>(connect(spec), its);
          connected.fetch_add(1);
          if (!its) early = true;
          return connect(spec);
        };
      });
  CHECK_EQ(connected.load(), 2);
  CHECK(!early);
}

TEST(ranks_join_across_hosts) {
  run_hosts({1, 2}, [](int rank, Engine& engine) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int batch = 0; batch <= (rank + epoch) % 3; ++batch) {
        float expected = 0;
        for (int other = 0; other < 3; ++other) {
          if ((other + epoch) % 3 >= batch) expected += static_cast<float>(other + 1);
        }
        for (const char* name : {"a", "b"}) CHECK_EQ(sum_in(engine, 0, name, rank, 50), expected);
      }
      const auto last = finish(engine, engine.join())->numbers.at(0);
      CHECK(last >= 0 && last < 3);
    }
  });
}

TEST(an_abort_reaches_all_hosts) { check_abort({2, 2}); }

TEST(an_abort_reaches_all_hosts_of_a_chain) { check_abort({1, 1, 1, 1}, in_a_chain); }

TEST(an_abort_ends_an_operation_over_sockets) { check_abort_in_an_operation({}); }

TEST(an_abort_ends_a_hierarchical_operation) { check_abort_in_an_operation(hierarchical); }

TEST(a_stall_within_another_host_is_reported) { check_stall_within_a_host({2, 2}); }

TEST(a_stall_within_the_last_host_of_a_chain_is_reported) {
  check_stall_within_a_host({1, 1, 2}, in_a_chain);
}

TEST(settings_reach_all_hosts) {
  run_hosts({2, 1}, [](int rank, Engine& engine) {
    if (rank == 0) engine.change_settings({.fusion_threshold = 4711});
    for (int turn = 0; turn < 5; ++turn) CHECK_EQ(sum_in(engine, 0, "t", rank, 10), 6.0F);
    CHECK_EQ(engine.settings().fusion_threshold, std::int64_t{4711});
    CHECK_EQ(engine.settings().epoch, std::uint64_t{1});
  });
}

TEST(clocks_are_compared_across_hosts) {
  run_hosts({2, 2}, [](int rank, Engine& engine) {
    engine.start_clock();
    const Nanos deadline = monotonic_now() + kPatience;
    while (engine.clock_readings(0).empty()) {
      CHECK(monotonic_now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const ClockReading reading = engine.clock_readings(0).front();
    // One machine: the clocks are the same.
    CHECK(reading.offset <= reading.bound && -reading.offset <= reading.bound);
    CHECK_EQ(sum_in(engine, 0, "all have seen it", rank, 10), 10.0F);
  });
}

}  // namespace hvdtune::testing::test_hosts
