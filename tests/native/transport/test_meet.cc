// Ranks that fail after all ranks of the job have met over the network.
#include "transport/meeting/meet.h"

#include <string>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "engine_job.h"
#include "threads.h"
#include "transport/sockets/tcp_listener.h"
#include "transport/sockets/unix_socket.h"

namespace hvdtune::testing::test_meet {
namespace {

struct Places {
  std::string endpoint = fresh_endpoint();
  int port =
      TcpListener({TcpAddress::of_digits("127.0.0.1", 0)}, "probe").addresses().front().port();
};

/// `host`: where the rank is.
HostSession meet_at(const Places& places, int rank, int size, int host) {
  MeetingOptions options;
  options.rank = rank;
  options.size = size;
  options.endpoint = places.endpoint;
  options.secret = "secret";
  options.hostname = "host" + std::to_string(host);
  options.timeout = 20 * kSecond;
  NetworkOptions network;
  network.host = "127.0.0.1";
  network.port = places.port;
  network.secret = "the secret of this job";
  network.version = "1";
  network.host_id = options.hostname;
  return meet(options, network);
}

/// Why the rank fails: at once, or after the ranks of its host have met.
std::string failure_of(const Places& places, int rank, int size, int host) {
  try {
    const HostSession session = meet_at(places, rank, size, host);
    const Nanos deadline = monotonic_now() + kPatience;
    while (session.arena->abort_status().ok()) {
      CHECK(monotonic_now() < deadline);
      std::this_thread::yield();
    }
    return session.arena->abort_status().text;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

/// Hosts 0 and 1 have two ranks each. One of them meets, and its leader waits for the other's.
TEST(a_leader_that_fails_gives_the_ranks_of_all_hosts_its_reason) {
  for (const int host : {0, 1}) {
    const Places places;
    // Another process has the name at which the ranks of this host meet.
    const Fd taken = unix_socket::listen(places.endpoint + "/host" + std::to_string(host));
    CHECK(taken.valid());
    const int leader = 2 * host;
    const std::string reason = "another process already is rank " + std::to_string(leader);
    const std::string who = "host" + std::to_string(host) + ") has failed: ";
    run_threads(4, [&](int rank) {
      const std::string text = failure_of(places, rank, 4, rank / 2);
      check_contains(text, rank == leader ? reason : who + reason);
    });
  }
}

TEST(rank_0_that_fails_gives_the_others_on_its_host_its_reason) {
  const Places places;
  const Fd taken = unix_socket::listen(places.endpoint);
  CHECK(taken.valid());
  run_threads(3, [&](int rank) {
    check_contains(failure_of(places, rank, 3, 0), "another process already is rank 0");
  });
}

TEST(ranks_of_one_host_that_leave_at_once_keep_nobody_from_meeting) {
  for (int turn = 0; turn < 20; ++turn) {
    const Places places;
    run_threads(4, [&](int rank) {
      const HostSession session = meet_at(places, rank, 4, 0);
      CHECK(!session.across_hosts());
    });
  }
}

}  // namespace hvdtune::testing::test_meet
