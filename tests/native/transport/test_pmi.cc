// What a process says to MPICH's mpirun at its end. The test is the mpirun.
#include "transport/messengers/pmi.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/fd.h"
#include "check.h"
#include "threads.h"

namespace hvdtune::testing::test_pmi {

namespace {

/// A connection between a process and its launcher.
struct Connection {
  Connection() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) fail(__FILE__, __LINE__, "sockets");
    process = Fd(ends[0]);
    launcher = Fd(ends[1]);
  }

  [[nodiscard]] std::string read_line() const {
    std::string line;
    for (char next = '\0'; read(launcher.get(), &next, 1) == 1;) {
      line += next;
      if (next == '\n') break;
    }
    return line;
  }

  /// In one write: so many small ones that the reader leaves some would block.
  void answer(const std::string& text) const {
    CHECK_EQ(write(launcher.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  Fd process;
  Fd launcher;
};

bool barrier_answered(const std::string& text) {
  const Connection connection;
  bool released = false;
  run_threads(2, [&](int thread) {
    if (thread == 0) {
      released = Pmi(connection.process.get()).barrier([] {});
    } else {
      CHECK_EQ(connection.read_line(), "cmd=barrier_in\n");
      connection.answer(text);
    }
  });
  return released;
}

}  // namespace

TEST(waits_for_all_and_lets_mpi_move_meanwhile) {
  const Connection connection;
  Pmi pmi(connection.process.get());
  int calls = 0;
  // The last process comes only when this one has been useful three times.
  CHECK(pmi.barrier([&] {
    if (++calls != 3) return;
    CHECK_EQ(connection.read_line(), "cmd=barrier_in\n");
    for (const char piece : std::string("cmd=barrier_out\n")) connection.answer({piece});
  }));
  CHECK(calls >= 3);
  connection.answer("cmd=finalize_ack\n");
  CHECK(pmi.leave());
  CHECK_EQ(connection.read_line(), "cmd=finalize\n");
}

TEST(answers_of_other_versions) {
  CHECK(barrier_answered("cmd=barrier_out rc=0\n"));
  CHECK(!barrier_answered("cmd=barrier_outer\n"));
  CHECK(!barrier_answered("cmd=abort exitcode=1\n"));
  CHECK(!barrier_answered(std::string(1100, 'x')));
}

TEST(a_launcher_that_is_gone_is_not_waited_for) {
  Connection connection;
  Pmi pmi(connection.process.get());
  connection.answer("cmd=barr");
  connection.launcher = Fd();
  CHECK(!pmi.barrier([] {}));
  CHECK(!pmi.leave());
  CHECK(!Pmi(-1).leave());
}

}  // namespace hvdtune::testing::test_pmi
