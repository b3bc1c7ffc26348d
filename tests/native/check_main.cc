#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "check.h"

#if defined(__SANITIZE_THREAD__)

#include <pthread.h>
#include <time.h>

// std::timed_mutex calls pthread_mutex_clocklock, which the thread sanitizer of g++ 12 and older
// does not know: it would take every unlock that follows for a mistake. It knows timedlock.
extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                       const timespec* deadline) noexcept {
  constexpr long kSecond = 1000000000;
  timespec now{};
  timespec until{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  const long nanoseconds = until.tv_nsec + deadline->tv_nsec - now.tv_nsec + kSecond;
  until.tv_sec += deadline->tv_sec - now.tv_sec - 1 + nanoseconds / kSecond;
  until.tv_nsec = nanoseconds % kSecond;
  return pthread_mutex_timedlock(mutex, &until);
}

#endif

namespace {

constexpr unsigned kLongest = 240;  // that a test may take under any sanitizer, seconds
std::string hung;                   // what is said if the test that runs now takes longer

/// A test hangs: nothing may be locked or allocated here.
void end_all(int) {
  (void)!write(STDOUT_FILENO, hung.data(), hung.size());
  _exit(1);
}

}  // namespace

/// Usage: PROGRAM [TEXT]. Runs the tests whose "file.name" contains TEXT; 0 if all of them passed.
/// A test that hangs is the last one.
int main(int argc, char** argv) {
  const char* filter = argc > 1 ? argv[1] : "";
  int passed = 0;
  int failed = 0;
  std::signal(SIGALRM, end_all);
  for (const auto& test : hvdtune::testing::all_tests()) {
    const std::string name = std::filesystem::path(test.file).stem().string() + "." + test.name;
    if (name.find(filter) == std::string::npos) continue;
    hung = "FAILED " + name + ": not over after " + std::to_string(kLongest) + " s\n";
    alarm(kLongest);
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", name.c_str(), error.what());
    }
    alarm(0);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
