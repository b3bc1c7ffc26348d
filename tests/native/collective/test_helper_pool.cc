#include "collective/kernels/helper_pool.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "collective/kernels/copy.h"

namespace hvdtune::testing::test_helper_pool {

namespace {

constexpr std::size_t kPiece = 64;
constexpr Nanos kAwake = 50 * kMicrosecond;

/// Helpers with pieces so small that everything is shared.
HelperOptions small_pieces(int threads, Patience patience = {}) {
  return {.threads = threads, .patience = patience, .least_piece = kPiece, .least_message = 0};
}

/// All ways of waiting.
const std::vector<Patience> kPatiences{{}, {kAwake, false}, {kAwake, true}};

/// How many threads are named as helpers, and how often they were switched from or to.
struct HelperThreads {
  int count = 0;
  std::uint64_t switches = 0;
};

HelperThreads helper_threads() {
  HelperThreads found;
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != nullptr);
  while (const dirent* entry = readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + entry->d_name;
    std::ifstream name_file(folder + "/comm");
    std::string name;
    if (!std::getline(name_file, name) || !name.starts_with("hvdtune-help")) continue;
    ++found.count;
    std::ifstream status(folder + "/status");
    std::string line;
    while (std::getline(status, line)) {
      const auto colon = line.find("ctxt_switches:");
      if (colon != std::string::npos) found.switches += std::stoull(line.substr(colon + 14));
    }
  }
  closedir(tasks);
  return found;
}

/// Adds 1 to every byte of the range.
void count_up(std::vector<std::uint8_t>& bytes, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) ++bytes[at];
}

/// Makes all `pool`'s helpers take part in one piece of work each; false if they did not in time.
bool all_take_part(HelperPool& pool) {
  const int threads = pool.helpers() + 1;
  std::atomic<int> here{0};
  const Nanos deadline = monotonic_now() + 60 * kSecond;
  std::atomic<bool> late{false};
  // As many pieces as threads: each has to wait for all others.
  pool.share(1, static_cast<std::size_t>(threads) * kPiece, [&](std::size_t, std::size_t) {
    ++here;
    while (here < threads && !late) {
      if (monotonic_now() > deadline) late = true;
      std::this_thread::yield();
    }
  });
  return !late;
}

/// Has every thread of `pool` take that much CPU time.
void all_compute(HelperPool& pool, Nanos each) {
  const int threads = pool.helpers() + 1;
  std::atomic<int> here{0};
  pool.share(1, static_cast<std::size_t>(threads) * kPiece, [&](std::size_t, std::size_t) {
    ++here;
    while (here < threads) std::this_thread::yield();
    const Nanos until = thread_cpu_now() + each;
    while (thread_cpu_now() < until) {
    }
  });
}

}  // namespace

TEST(every_byte_is_worked_on_once_whatever_the_number_of_helpers) {
  for (const Patience& patience : kPatiences) {
    for (int threads = 0; threads <= 3; ++threads) {
      HelperPool pool(small_pieces(threads, patience));
      CHECK_EQ(pool.helpers(), threads);
      for (const std::size_t bytes : {0, 1, 63, 64, 127, 128, 129, 1000, 4096, 100001}) {
        std::vector<std::uint8_t> done(bytes, 0);
        std::atomic<bool> aligned{true};
        pool.share(bytes, bytes, [&](std::size_t begin, std::size_t end) {
          if (begin % 64 != 0 || begin >= end) aligned = false;
          count_up(done, begin, end);
        });
        CHECK(aligned);
        CHECK_EQ(std::count(done.begin(), done.end(), 1), static_cast<std::ptrdiff_t>(bytes));
      }
    }
  }
}

/// Each round's data are written by whoever is at hand and read by the caller right behind it, and
/// what the work is lies on the caller's stack.
TEST(rounds_follow_each_other_without_mixing) {
  for (const Patience& patience : kPatiences) {
    for (const int threads : {1, 3}) {
      HelperPool pool(small_pieces(threads, patience));
      std::vector<std::uint32_t> data(1024);
      for (std::uint32_t round = 1; round <= 3000; ++round) {
        const std::size_t count = 16 + round % 1000;
        pool.share(1, count * 4, [&, round](std::size_t begin, std::size_t end) {
          for (std::size_t at = begin / 4; at < end / 4; ++at) data[at] = round;
        });
        for (std::size_t at = 0; at < count; ++at) CHECK_EQ(data[at], round);
      }
    }
  }
}

TEST(the_cpu_time_of_helpers_alone_is_told_once) {
  for (const Patience& patience : kPatiences) {
    for (const int threads : {1, 3}) {
      const Nanos all_before = process_cpu_now();
      const Nanos own_before = thread_cpu_now();
      HelperPool pool(small_pieces(threads, patience));
      CHECK_EQ(pool.cpu_since_asked(), 0);
      Nanos told = 0;
      for (int round = 0; round < 2; ++round) {
        all_compute(pool, 10 * kMillisecond);
        const Nanos cpu = pool.cpu_since_asked();
        CHECK(cpu >= threads * 10 * kMillisecond);
        CHECK_EQ(pool.cpu_since_asked(), 0);
        told += cpu;
      }
      pool.stop();  // then all that they took is in the process's
      const Nanos own = thread_cpu_now() - own_before;
      CHECK(told <= process_cpu_now() - all_before - own);
    }
  }
}

TEST(without_helpers_nobody_takes_cpu_time) {
  HelperPool pool(small_pieces(1));
  all_compute(pool, kMillisecond);
  pool.stop();
  all_compute(pool, kMillisecond);
  CHECK_EQ(pool.cpu_since_asked(), 0);
}

TEST(all_helpers_take_part_also_after_sleeping) {
  for (const Patience& patience : kPatiences) {
    HelperPool pool(small_pieces(3, patience));
    for (int round = 0; round < 20; ++round) CHECK(all_take_part(pool));
  }
}

/// The caller sleeps where a helper takes long over its piece, and is woken.
TEST(the_caller_waits_for_a_piece_that_a_helper_has_taken) {
  for (const Patience& patience : kPatiences) {
    HelperPool pool(small_pieces(1, patience));
    const std::thread::id caller = std::this_thread::get_id();
    for (int round = 0; round < 20; ++round) {
      std::atomic<bool> helper_began{false};
      std::atomic<bool> helper_done{false};
      const Nanos deadline = monotonic_now() + 60 * kSecond;
      pool.share(1, 2 * kPiece, [&](std::size_t, std::size_t) {
        if (std::this_thread::get_id() != caller) {
          helper_began = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          helper_done = true;
        } else {
          while (!helper_began && monotonic_now() < deadline) std::this_thread::yield();
        }
      });
      CHECK(helper_began);
      CHECK(helper_done);
    }
  }
}

TEST(what_is_not_worth_it_is_not_shared) {
  HelperPool pool({.threads = 2, .patience = {}, .least_piece = 1000, .least_message = 5000});
  const auto pieces = [&](std::size_t message, std::size_t bytes) {
    std::atomic<int> calls{0};
    std::atomic<std::size_t> shortest{bytes};
    std::mutex mutex;
    pool.share(message, bytes, [&](std::size_t begin, std::size_t end) {
      const std::lock_guard lock(mutex);
      ++calls;
      shortest = std::min<std::size_t>(shortest, end == bytes ? bytes : end - begin);
    });
    CHECK(calls == 1 || shortest >= 1000);
    return calls.load();
  };
  CHECK_EQ(pieces(4999, 100000), 1);
  CHECK_EQ(pieces(5000, 1999), 1);
  CHECK_EQ(pieces(5000, 2000), 2);
  CHECK(pieces(5000, 100000) > 3);
  CHECK(pieces(5000, 100000) <= 3 * 2 + 1);
}

TEST(what_is_no_message_is_not_shared) {
  HelperPool pool(small_pieces(2));
  int calls = 0;
  for (int round = 0; round < 20; ++round) {
    pool.share(0, 64 * kPiece, [&](std::size_t begin, std::size_t end) {
      ++calls;
      CHECK_EQ(begin, 0U);
      CHECK_EQ(end, 64 * kPiece);
    });
  }
  CHECK_EQ(calls, 20);
}

TEST(stopping_while_idle_while_polling_and_twice) {
  for (const Patience& patience :
       {Patience{}, Patience{10 * kSecond, false}, Patience{kAwake, true}}) {
    for (int round = 0; round < 50; ++round) {
      HelperPool pool(small_pieces(round % 4, patience));
      if (round % 3 != 0) {
        std::vector<std::uint8_t> done(1000, 0);
        pool.share(1, done.size(), [&](std::size_t b, std::size_t e) { count_up(done, b, e); });
      }
      pool.stop();
      CHECK_EQ(pool.helpers(), 0);
      pool.stop();
      // It goes on alone.
      std::vector<std::uint8_t> done(1000, 0);
      pool.share(1, done.size(), [&](std::size_t b, std::size_t e) { count_up(done, b, e); });
      CHECK_EQ(std::count(done.begin(), done.end(), 1), 1000);
    }
  }
  CHECK_EQ(helper_threads().count, 0);
}

/// Threads have a name that tools show, take no signals, and are gone with the pool.
TEST(helpers_are_threads_of_their_own_without_signals) {
  CHECK_EQ(helper_threads().count, 0);
  {
    HelperPool pool(small_pieces(3));
    CHECK_EQ(helper_threads().count, 3);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> unblocked{0};
    std::atomic<int> here{0};
    pool.share(1, 4 * kPiece, [&](std::size_t, std::size_t) {
      ++here;
      while (here < 4) std::this_thread::yield();
      if (std::this_thread::get_id() == caller) return;
      sigset_t blocked;
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
        if (sigismember(&blocked, signal) == 0) ++unblocked;
      }
    });
    CHECK_EQ(unblocked.load(), 0);
  }
  CHECK_EQ(helper_threads().count, 0);
}

/// Once asleep, helpers are not scheduled any more: their switches do not grow.
TEST(idle_helpers_sleep) {
  HelperPool pool(small_pieces(3, {kAwake, false}));
  CHECK(all_take_part(pool));
  // They fall asleep when their patience is at an end, whenever that is on this machine.
  const Nanos deadline = monotonic_now() + 60 * kSecond;
  HelperThreads before = helper_threads();
  int quiet = 0;
  while (quiet < 3 && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const HelperThreads now = helper_threads();
    quiet = now.switches == before.switches ? quiet + 1 : 0;
    before = now;
  }
  CHECK_EQ(quiet, 3);
  // Nor do they run: a thread that polls without being switched uses CPU time.
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  const Nanos cpu_before = used.tv_sec * kSecond + used.tv_nsec;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  CHECK(used.tv_sec * kSecond + used.tv_nsec - cpu_before < 100 * kMillisecond);
}

TEST(how_many_helpers_fit) {
  CHECK_EQ(fitting_helpers(1, 64, 64), 0);  // nothing to reduce
  CHECK_EQ(fitting_helpers(2, 2, 2), 0);
  CHECK_EQ(fitting_helpers(8, 2, 2), 0);
  CHECK_EQ(fitting_helpers(2, 3, 3), 0);
  CHECK_EQ(fitting_helpers(2, 4, 4), 1);
  CHECK_EQ(fitting_helpers(4, 16, 16), 3);
  CHECK_EQ(fitting_helpers(5, 16, 16), 2);
  CHECK_EQ(fitting_helpers(8, 16, 16), 1);
  CHECK_EQ(fitting_helpers(2, 64, 64), kMostChosenHelpers);
  // This rank alone is bound to few CPUs.
  CHECK_EQ(fitting_helpers(2, 64, 1), 0);
  CHECK_EQ(fitting_helpers(2, 64, 2), 1);
}

}  // namespace hvdtune::testing::test_helper_pool
