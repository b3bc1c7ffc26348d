// Ranks of a host that meet: as in containers that have their own pids, and around a leader that is
// not rank 0.
#include "transport/meeting/meet_on_host.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "base/error.h"
#include "check.h"
#include "engine_job.h"
#include "threads.h"
#include "transport/sockets/unix_socket.h"

namespace hvdtune::testing::test_meet_on_host {
namespace {

constexpr int kNotAllowed = 77;

/// With which status the process exits; -1 if a signal ends it.
int exit_of(pid_t process) {
  int status = 0;
  const bool exits = waitpid(process, &status, 0) == process && WIFEXITED(status);
  return exits ? WEXITSTATUS(status) : -1;
}

/// Runs `body` in a process that has pids of its own, as in a container. What this returns exits
/// with 0 after it, or with kNotAllowed if the system does not make such processes.
pid_t start_apart(const std::function<void()>& body) {
  const pid_t starter = fork();
  CHECK(starter >= 0);
  if (starter > 0) return starter;
  // Its next child. Without privileges, that also has users of its own.
  if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(kNotAllowed);
  const pid_t apart = fork();
  if (apart < 0) _exit(kNotAllowed);
  if (apart > 0) _exit(exit_of(apart));
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the process with its own pids: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

MeetingOptions options_for(int rank, int size, const std::string& endpoint) {
  MeetingOptions options;
  options.rank = rank;
  options.size = size;
  options.endpoint = endpoint;
  options.secret = "secret";
  options.hostname = "here";
  options.timeout = 20 * kSecond;
  return options;
}

void check_peer(const HostSession& session, int rank, int pid, bool here) {
  const PeerInfo& peer = session.peers[static_cast<std::size_t>(rank)];
  CHECK_EQ(peer.pid, pid);
  CHECK_EQ(peer.here, here);
  CHECK(session.is_here(rank));
}

}  // namespace

// First, while this process has no other threads: it forks.
TEST(a_process_with_its_own_pids_is_not_taken_for_one_of_ours) {
  if (exit_of(start_apart([] {})) == kNotAllowed) return;
  const pid_t ours = getpid();
  for (const int apart : {0, 1}) {  // the rank that has its own pids
    const std::string endpoint = fresh_endpoint();
    const pid_t other = start_apart([&] {
      const HostSession session = meet_on_host(options_for(apart, 2, endpoint));
      check_peer(session, apart, getpid(), true);
      // It has no pid there.
      check_peer(session, 1 - apart, ours, false);
    });
    const HostSession session = meet_on_host(options_for(1 - apart, 2, endpoint));
    check_peer(session, 1 - apart, ours, true);
    // The system sees it here too, under another pid than its own, which is 1.
    const PeerInfo& peer = session.peers[static_cast<std::size_t>(apart)];
    CHECK(peer.here);
    CHECK(peer.pid > 1);
    CHECK_EQ(exit_of(other), 0);
  }
}

TEST(ranks_with_the_same_pids_are_all_here) {
  const std::string endpoint = fresh_endpoint();
  run_threads(3, [&](int rank) {
    const HostSession session = meet_on_host(options_for(rank, 3, endpoint));
    for (const int other : {0, 1, 2}) check_peer(session, other, getpid(), true);
  });
}

/// Ranks 2 and 3 of a job on two hosts.
TEST(a_leader_that_hangs_up_is_named_unless_its_reason_is_known) {
  MeetingOptions options = options_for(3, 4, fresh_endpoint());
  options.local = {2, 3};
  const Fd leader = unix_socket::listen(options.endpoint);
  for (const bool known : {false, true}) {
    if (known) {
      options.hear_reason = [] { throw Error(ErrorKind::kAborted, "rank 2 has no memory"); };
    }
    run_threads(2, [&](int thread) {
      if (thread == 0) {
        CHECK_THROWS_WITH(
            meet_on_host(options), Error,
            known ? "rank 2 has no memory" : "rank 2 ended before all processes of the job had");
        return;
      }
      for (int times = 0; times < 2; ++times) {  // a rank tries again
        const Nanos deadline = monotonic_now() + kPatience;
        const Fd caller = unix_socket::accept(leader, deadline);
        std::string hello;
        bool timed_out = false;
        CHECK(unix_socket::receive(caller, hello, deadline, timed_out));
      }
    });
  }
}

TEST(a_leader_that_does_not_come_is_named) {
  MeetingOptions options = options_for(3, 4, fresh_endpoint());
  options.local = {2, 3};
  options.timeout = 50 * kMillisecond;
  CHECK_THROWS_WITH(meet_on_host(options), Error,
                    "rank 2 did not come within 0.05 s (HOROVOD_START_TIMEOUT)");
}

}  // namespace hvdtune::testing::test_meet_on_host
