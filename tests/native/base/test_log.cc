#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_log {
namespace {

struct Output {
  std::string out;
  std::string err;
};

std::string read_all(int descriptor) {
  std::string text(1 << 20, '\0');
  const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

/// Whether `text` is `pattern`, in which # stands for one digit.
bool matches(const std::string& text, const std::string& pattern) {
  return std::equal(text.begin(), text.end(), pattern.begin(), pattern.end(), [](char t, char p) {
    return p == '#' ? std::isdigit(static_cast<unsigned char>(t)) != 0 : t == p;
  });
}

/// What `body` writes to stdout and stderr. In a child process: the tests' own output stays whole.
Output capture(const std::function<void()>& body) {
  char out_name[] = "/tmp/hvdtune-log-out-XXXXXX";
  char err_name[] = "/tmp/hvdtune-log-err-XXXXXX";
  const int out = mkostemp(out_name, O_APPEND);
  const int err = mkostemp(err_name, O_APPEND);
  CHECK(out >= 0 && err >= 0);
  unlink(out_name);
  unlink(err_name);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const Output output{read_all(out), read_all(err)};
  close(out);
  close(err);
  CHECK_EQ(status, 0);
  return output;
}

TEST(line_has_time_level_place_and_rank) {
  const Output output = capture([] {
    Logger::configure({.level = LogLevel::kTrace, .rank = 3});
    HVD_LOG(kWarning) << "answer " << 42;
  });
  CHECK_MSG(matches(output.err, "[####-##-## ##:##:##.######: W test_log.cc:##] [3]: answer 42\n"),
            output.err);
  CHECK_EQ(output.out, "");
}

TEST(time_can_be_hidden_and_rank_left_out) {
  const Output output = capture([] {
    Logger::configure({.level = LogLevel::kInfo, .hide_time = true});
    Logger::write(LogLevel::kInfo, "/some/where/engine.cc", 7, {}, "hello");
    Logger::write(LogLevel::kError, "engine.cc", 8, 5, "bye");
  });
  CHECK_EQ(output.out, "[I engine.cc:7] hello\n");
  CHECK_EQ(output.err, "[E engine.cc:8] [5]: bye\n");
}

TEST(rank_of_the_message_wins_over_that_of_the_process) {
  const Output output = capture([] {
    Logger::configure({.hide_time = true, .rank = 0});
    HVD_LOG_RANK(kWarning, 6) << "x";
  });
  CHECK_MSG(output.err.find("] [6]: x\n") != std::string::npos, output.err);
}

TEST(mild_levels_go_to_stdout_severe_ones_to_stderr) {
  const Output output = capture([] {
    Logger::configure({.level = LogLevel::kTrace, .hide_time = true});
    for (int level = 0; level < 6; ++level) Logger::write(LogLevel{level}, "f", 1, {}, "m");
  });
  CHECK_EQ(output.out, "[T f:1] m\n[D f:1] m\n[I f:1] m\n");
  CHECK_EQ(output.err, "[W f:1] m\n[E f:1] m\n[F f:1] m\n");
}

TEST(disabled_level_evaluates_nothing) {
  const Output output = capture([] {
    Logger::configure({.level = LogLevel::kError});
    int evaluated = 0;
    HVD_LOG(kWarning) << ++evaluated;
    if (evaluated != 0) _exit(1);
    // The macro is one statement: the else belongs to the outer if.
    bool other_branch = false;
    if (evaluated != 0)
      HVD_LOG(kError) << "no";
    else
      other_branch = true;
    if (!other_branch) _exit(2);
  });
  CHECK_EQ(output.out + output.err, "");
}

TEST(lines_of_many_threads_stay_whole) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  const Output output = capture([] {
    Logger::configure({.hide_time = true});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        for (int i = 0; i < kLines; ++i) {
          HVD_LOG_RANK(kWarning, thread) << std::string(100, static_cast<char>('a' + thread));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::istringstream lines(output.err);
  int count = 0;
  for (std::string text; std::getline(lines, text); ++count) {
    const auto letters = std::string(100, text.empty() ? '?' : text.back());
    CHECK_MSG(matches(text, "[W test_log.cc:###] [#]: " + letters), text);
  }
  CHECK_EQ(count, kThreads * kLines);
}

TEST(level_names) {
  CHECK(parse_log_level("trace") == LogLevel::kTrace);
  CHECK(parse_log_level("WARNING") == LogLevel::kWarning);
  CHECK(parse_log_level("Fatal") == LogLevel::kFatal);
  CHECK(!parse_log_level("loud"));
  CHECK(!parse_log_level(""));
}

}  // namespace
}  // namespace hvdtune::testing::test_log
