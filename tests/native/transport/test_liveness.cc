// What the end of a rank is noticed by.
#include "transport/control/liveness.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "check.h"
#include "engine_job.h"
#include "transport/sockets/unix_socket.h"

namespace hvdtune::testing::test_liveness {

/// In a container with its own pids, the number that a rank has for itself is that of a process
/// here with which it has nothing to do.
TEST(a_process_that_is_not_here_is_watched_by_its_socket_alone) {
  const pid_t unrelated = fork();
  CHECK(unrelated >= 0);
  if (unrelated == 0) {
    for (;;) pause();
  }
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Fd rank_1(ends[1]);
  HostSession session;
  session.peers.push_back({"here", getpid(), true});
  session.peers.push_back({"here", unrelated, false});
  session.sockets.resize(2);
  session.sockets[1] = Fd(ends[0]);
  std::atomic<int> heard{0};
  std::atomic<bool> dead{false};
  LivenessWatch watch(session, 0,
                      {.on_death = [&](int) { dead = true; },
                       .on_message = [&](int, std::string_view) { heard.fetch_add(1); }});
  watch.start();
  kill(unrelated, SIGKILL);
  CHECK_EQ(waitpid(unrelated, nullptr, 0), unrelated);
  // The watch has looked again, and goes on.
  for (int messages = 1; messages <= 2; ++messages) {
    CHECK(unix_socket::send(rank_1, "still here"));
    const Nanos deadline = monotonic_now() + kPatience;
    while (heard < messages) {
      CHECK(monotonic_now() < deadline);
      std::this_thread::yield();
    }
  }
  CHECK(!dead);
  rank_1 = Fd();
  await(dead);
}

}  // namespace hvdtune::testing::test_liveness
