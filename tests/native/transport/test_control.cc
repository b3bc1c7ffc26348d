// What other processes may ask a running job, and what the status says.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"
#include "transport/control/control_server.h"

namespace hvdtune::testing::test_control {
namespace {

std::string ask(const std::string& name, const std::string& question) {
  const Fd connection = unix_socket::connect(name);
  CHECK(connection.valid());
  CHECK(unix_socket::send(connection, question));
  std::string answer;
  std::string piece;
  bool timed_out = false;
  while (unix_socket::receive(connection, piece, monotonic_now() + kPatience, timed_out)) {
    answer += piece;
  }
  CHECK(!timed_out);
  return answer;
}

TEST(long_answers_come_in_pieces_and_exceptions_as_sentences) {
  const std::string name = fresh_endpoint();
  ControlServer server(name, [](std::string_view question) -> std::string {
    if (question == "no") throw std::runtime_error("not that");
    return std::string(200'000, 'x');
  });
  CHECK(server.running());
  CHECK_EQ(ask(name, "long"), "+" + std::string(200'000, 'x'));
  CHECK_EQ(ask(name, "no"), std::string("-not that"));
  const ControlServer second(name, [](std::string_view) { return std::string(); });
  CHECK(!second.running());
  server.stop();
  CHECK(!unix_socket::connect(name).valid());
}

TEST(whoever_hangs_up_or_says_nothing_does_not_hold_up_others) {
  const std::string name = fresh_endpoint();
  ControlServer server(name, [](std::string_view) { return std::string("here"); });
  for (int i = 0; i < 20; ++i) {
    const Fd gone = unix_socket::connect(name);
    CHECK(gone.valid());
  }
  CHECK_EQ(ask(name, "status"), std::string("+here"));
}

TEST(whoever_does_not_read_does_not_keep_the_job_from_ending) {
  const std::string name = fresh_endpoint();
  std::atomic<bool> asked{false};
  ControlServer server(name, [&](std::string_view) {
    asked = true;
    return std::string(std::size_t{8} << 20, 'x');
  });
  const Fd silent = unix_socket::connect(name);
  CHECK(unix_socket::send(silent, "status"));
  while (!asked) std::this_thread::yield();
  server.stop();
  CHECK(!unix_socket::connect(name).valid());
}

TEST(an_answer_ends_though_a_forked_child_has_the_connection) {
  const std::string name = fresh_endpoint();
  std::atomic<pid_t> child{0};
  ControlServer server(name, [&](std::string_view) {
    child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    return std::string("here");
  });
  const std::string answer = ask(name, "status");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK_EQ(answer, std::string("+here"));
}

TEST(a_job_tells_its_status_and_stacks) {
  const std::string name = fresh_endpoint();
  run_job(3, [&](int rank, Engine& engine) {
    engine.set_stack_source([rank] { return "stack of " + std::to_string(rank); });
    engine.serve(name, "\"job\":\"the one\"", [](std::string_view question) {
      if (question == "timeline-hello") return std::string("hello");
      throw Error(ErrorKind::kInvalidArgument, "what?");
    });
    std::vector<float> data(1000, 1);
    for (int step = 0; step < 12; ++step) {
      finish(engine, engine.submit(in_place(OpKind::kAllreduce, "a", data)));
    }
    if (rank == 0) {
      // The others have gone on: what they submit waits for rank 0, which nobody wakes for it.
      std::string waiting;
      const Nanos deadline = monotonic_now() + kPatience;
      while (waiting.find("\"queue\":2,\"queue_for_ranks\":2,") == std::string::npos) {
        waiting = ask(name, "status");
        CHECK_MSG(monotonic_now() < deadline, waiting);
      }
      engine.note("tuner", "\"quoted\"\n");
      const std::string status = ask(name, "status");
      CHECK_EQ(status.front(), '+');
      for (const char* part : {"\"job\":\"the one\"", "\"tuner\":\"\\\"quoted\\\"\\n\"",
                               "\"fusion_threshold\":", "\"steps\":10"}) {
        check_contains(status, part);
      }
      const std::string stacks = ask(name, "stacks");
      for (const char* part : {"stack of 0", "stack of 1", "stack of 2", "Rank 2: host here"}) {
        check_contains(stacks, part);
      }
      const std::string one = ask(name, "stacks 1");
      check_contains(one, "stack of 1");
      CHECK(one.find("stack of 2") == std::string::npos);
      check_contains(ask(name, "stacks 7"), "-there is no rank 7; the job's are 0 to 2");
      check_contains(ask(name, "stacks x"), "-there is no rank x");
      CHECK_EQ(ask(name, "timeline-hello"), std::string("+hello"));
      CHECK_EQ(ask(name, "timeline-bye"), std::string("-what?"));
      check_contains(ask(name, "hello"), "-the job does not know this question");
    }
    std::vector<float> more(1000, 1);
    const auto known = engine.submit(in_place(OpKind::kAllreduce, "a", data));
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "end", more)));
    finish(engine, known);
    if (rank == 0) check_contains(engine.status(), "\"queue\":0,\"queue_for_ranks\":0,");
  });
  CHECK(!unix_socket::connect(name).valid());
}

}  // namespace
}  // namespace hvdtune::testing::test_control
