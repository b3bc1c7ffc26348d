#include "transport/control/beats.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "check.h"

namespace hvdtune::testing::test_beats {
namespace {

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    sender = Fd(ends[0]);
    reader = Fd(ends[1]);
  }

  std::string read(std::size_t bytes) const {
    std::string all;
    while (all.size() < bytes) {
      std::array<char, 64> part{};
      const ssize_t count =
          ::read(reader.get(), part.data(), std::min(part.size(), bytes - all.size()));
      CHECK(count > 0);
      all.append(part.data(), static_cast<std::size_t>(count));
    }
    return all;
  }

  Fd sender;
  Fd reader;
};

}  // namespace

TEST(beats_come_until_they_are_stopped) {
  const Pair pair;
  Beats beats(pair.sender.get(), "beat\n", kMillisecond);
  CHECK_EQ(pair.read(15), std::string("beat\nbeat\nbeat\n"));
  beats.stop();
  beats.stop();
  std::array<char, 4096> rest{};
  while (recv(pair.reader.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
  }
  usleep(5000);
  CHECK_EQ(recv(pair.reader.get(), rest.data(), rest.size(), MSG_DONTWAIT), -1);
}

TEST(a_long_pause_does_not_hold_up_the_end_of_beats) {
  const Pair pair;
  Beats beats(pair.sender.get(), "x", 3600 * kSecond);
  CHECK_EQ(pair.read(1), std::string("x"));
}

TEST(whoever_sends_may_close_the_socket) {
  Pair pair;
  Beats beats(pair.sender.get(), "x", kMillisecond);
  pair.sender = Fd();
  CHECK_EQ(pair.read(3), std::string("xxx"));
  beats.stop();
}

TEST(beats_need_a_socket) {
  CHECK_THROWS_WITH(Beats(-1, "x", kMillisecond), Error, "not an open socket");
}

TEST(a_reader_who_is_gone_ends_beats_without_a_signal) {
  Pair pair;
  Beats beats(pair.sender.get(), "x", kMillisecond);
  pair.reader = Fd();
  usleep(5000);
}

TEST(a_reader_who_does_not_read_holds_up_nothing) {
  const Pair pair;
  const std::string much(1 << 16, 'x');
  while (send(pair.sender.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
  }
  Beats beats(pair.sender.get(), "beat\n", kMillisecond);
  usleep(5000);
}

TEST(a_fork_ends_without_the_thread_of_beats) {
  const Pair pair;
  Beats beats(pair.sender.get(), "x", kMillisecond);
  const pid_t child = fork();
  if (child == 0) {
    beats.stop();
    _exit(7);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

}  // namespace hvdtune::testing::test_beats
