// The value of a rank's helpers on this machine: copying and reducing with one thread and with
// helpers, and the cost of a hand-over. Needs as many idle CPUs as there are threads.
//
//   cmake -S . -B build/benchmarks -DHVDTUNE_BUILD_PYTHON=OFF -DHVDTUNE_BUILD_BENCHMARKS=ON
//   cmake --build build/benchmarks && build/benchmarks/helper_pool [most helpers]

#include "collective/kernels/helper_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collective/kernels/copy.h"
#include "collective/kernels/kernels.h"

namespace {

using namespace hvdtune;

constexpr std::size_t KiB = 1 << 10;
constexpr int kRounds = 7;
constexpr Nanos kTurn = 10 * kMillisecond;
constexpr std::size_t kWindow = 2 << 20;     // of one of two ranks
constexpr Nanos kAwake = 50 * kMicrosecond;  // the engine's

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Microseconds a call, over one turn.
double timed(const std::function<void()>& call) {
  const Nanos begin = monotonic_now();
  Nanos now = begin;
  long calls = 0;
  for (; now < begin + kTurn; now = monotonic_now(), ++calls) call();
  return static_cast<double>(now - begin) / static_cast<double>(calls) / 1e3;
}

HelperOptions options_of(int threads, std::size_t piece) {
  return {
      .threads = threads, .patience = {kAwake, false}, .least_piece = piece, .least_message = 0};
}

/// Binds the calling thread to the first CPU that it may use, or to all others; threads that it
/// starts then are bound in the same way. If the scheduler puts two busy threads on one CPU, a
/// benchmark says nothing.
class Places {
 public:
  Places() {
    sched_getaffinity(0, sizeof(all_), &all_);
    CPU_ZERO(&first_);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all_)) ++cpu;
    CPU_SET(cpu, &first_);
    CPU_XOR(&others_, &all_, &first_);
  }
  [[nodiscard]] int others() const { return CPU_COUNT(&others_); }
  void go_first() const { sched_setaffinity(0, sizeof(first_), &first_); }
  void go_elsewhere() const { sched_setaffinity(0, sizeof(others_), &others_); }

 private:
  cpu_set_t all_{};
  cpu_set_t first_{};
  cpu_set_t others_{};
};

std::unique_ptr<HelperPool> pool_elsewhere(const Places& places, const HelperOptions& options) {
  places.go_elsewhere();
  auto pool = std::make_unique<HelperPool>(options);
  places.go_first();
  return pool;
}

/// A tensor, and two windows of a rank and a peer, through which it passes in chunks.
class Stream {
 public:
  Stream(std::size_t tensor, std::size_t window)
      : tensor_(tensor / 4, 1.0F), window_(window / 4, 2.0F), peer_(window / 4, 3.0F) {}

  /// As a rank packs, and unpacks, a chunk.
  void copy(HelperPool& pool, std::size_t chunk) {
    const std::size_t at = next(tensor_, chunk);
    const std::size_t in_window = at % window_.size();
    pool.share(chunk, chunk, [&](std::size_t begin, std::size_t end) {
      copy_bytes(&window_[in_window + begin / 4], &tensor_[at + begin / 4], end - begin,
                 CopyKind::kCached);
    });
  }
  /// As a rank reduces its part of a chunk: its own data and a peer's, in place.
  void reduce(HelperPool& pool, std::size_t chunk) {
    const std::size_t at = next(tensor_, chunk);
    const std::size_t in_window = at % window_.size();
    const ReduceKernel kernel = reduce_kernel(DType::kFloat32, ReduceOp::kSum);
    pool.share(chunk, chunk, [&](std::size_t begin, std::size_t end) {
      const void* sources[] = {&tensor_[at + begin / 4], &peer_[in_window + begin / 4]};
      kernel(&tensor_[at + begin / 4], sources, 2, (end - begin) / 4, 1.0);
    });
  }

 private:
  std::size_t next(const std::vector<float>& tensor, std::size_t chunk) {
    const std::size_t at = at_;
    at_ = (at_ + chunk / 4) % tensor.size();
    return at;
  }

  std::vector<float> tensor_;
  std::vector<float> window_;
  std::vector<float> peer_;
  std::size_t at_ = 0;
};

using Work = void (Stream::*)(HelperPool& pool, std::size_t chunk);

/// Microseconds a chunk if as many threads as a rank and its helpers work on tensors of their own,
/// each on a CPU of its own, divided by their number: sharing cannot be faster.
double apart(const Places& places, int threads, Work work, std::size_t tensor, std::size_t chunk) {
  std::atomic<int> ready{0};
  std::vector<double> times(static_cast<std::size_t>(threads) + 1);
  const auto body = [&](std::size_t number) {
    HelperPool none;
    Stream stream(tensor, kWindow);
    ++ready;
    while (ready <= threads) {
    }
    times[number] = timed([&] { (stream.*work)(none, chunk); });
  };
  std::vector<std::thread> others;
  places.go_elsewhere();
  for (int number = 1; number <= threads; ++number) {
    others.emplace_back(body, static_cast<std::size_t>(number));
  }
  places.go_first();
  body(0);
  for (std::thread& thread : others) thread.join();
  double rate = 0;
  for (const double time : times) rate += 1 / time;
  return 1 / rate;
}

/// A line for each length of a chunk: alone, then with helpers and pieces of several lengths, then
/// as many threads that share nothing; in turns.
void compare(const char* title, const Places& places, int threads, Work work, std::size_t tensor) {
  const std::vector<std::size_t> pieces{8 * KiB, 16 * KiB, 32 * KiB, 64 * KiB};
  std::printf("%s, tensor of %zu KiB, %d helpers; us a chunk, and how often faster than alone\n",
              title, tensor / KiB, threads);
  std::printf("%6s %9s", "chunk", "alone");
  for (const std::size_t piece : pieces) std::printf("  pieces >= %2zu KiB", piece / KiB);
  std::printf("   sharing nothing\n");
  for (const std::size_t size : {64, 128, 256, 512}) {
    const std::size_t chunk = size * KiB;
    Stream stream(tensor, kWindow);
    std::vector<std::vector<double>> times(pieces.size() + 2);
    HelperPool none;
    for (int round = 0; round < kRounds; ++round) {
      places.go_first();
      times[0].push_back(timed([&] { (stream.*work)(none, chunk); }));
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        const auto pool = pool_elsewhere(places, options_of(threads, pieces[p]));
        times[p + 1].push_back(timed([&] { (stream.*work)(*pool, chunk); }));
      }
      times.back().push_back(apart(places, threads, work, tensor, chunk));
    }
    const double alone = median(times[0]);
    std::printf("%6zu %9.2f", size, alone);
    for (std::size_t column = 1; column < times.size(); ++column) {
      const double with = median(times[column]);
      std::printf("  %9.2f %5.2fx", with, alone / with);
    }
    std::printf("\n");
  }
}

/// The cost of calling and waiting for `threads` helpers: empty work of which every thread does one
/// piece. `pause`: time before each call; helpers sleep if it exceeds their patience.
double hand_over(const Places& places, int threads, Nanos pause) {
  const auto pool = pool_elsewhere(places, options_of(threads, 64));
  std::vector<double> times;
  const std::size_t bytes = 64 * static_cast<std::size_t>(threads + 1);
  for (int call = 0; call < 400; ++call) {
    if (pause > 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    } else {
      const Nanos until = monotonic_now() + 3 * kMicrosecond;
      while (monotonic_now() < until) {
      }
    }
    std::atomic<int> here{0};
    const Nanos begin = monotonic_now();
    pool->share(bytes, bytes, [&](std::size_t, std::size_t) {
      ++here;
      while (here <= threads) {
      }
    });
    times.push_back(static_cast<double>(monotonic_now() - begin) / 1e3);
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  const int most = argc > 1 ? std::atoi(argv[1]) : 1;
  if (most < 1 || most > kMostHelpers) {
    std::fprintf(stderr, "usage: helper_pool [most helpers, 1 to %d]\n", kMostHelpers);
    return 2;
  }
  const Places places;
  if (places.others() < most) {
    std::fprintf(stderr, "%d helpers need %d CPUs; there are %d\n", most, most + 1,
                 places.others() + 1);
    return 2;
  }
  for (int threads = 1; threads <= most; ++threads) {
    std::printf(
        "a hand-over to %d helpers and back: %.2f us while they are awake, %.1f us when "
        "they sleep\n",
        threads, hand_over(places, threads, 0), hand_over(places, threads, kMillisecond));
    for (const std::size_t tensor : {2048 * KiB, 65536 * KiB}) {
      compare("reducing (float32, 2 sources)", places, threads, &Stream::reduce, tensor);
      compare("copying", places, threads, &Stream::copy, tensor);
    }
  }
  return 0;
}
