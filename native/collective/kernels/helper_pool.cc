#include "collective/kernels/helper_pool.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/cpu/time_slice.h"
#include "base/log.h"
#include "base/threads/futex.h"
#include "base/threads/signals_blocked.h"
#include "collective/kernels/copy.h"
#include "collective/kernels/reduction.h"

namespace hvdtune {
namespace {

// More than one piece per thread compensates for different starting times; too many pieces cost
// more than this gains.
constexpr std::size_t kPiecesPerThread = 2;
constexpr std::uint32_t kStop = UINT32_MAX;

}  // namespace

int fitting_helpers(int ranks, int cpus, int own_cpus) {
  if (ranks <= 1) return 0;
  return std::clamp(std::min(cpus / ranks, own_cpus) - 1, 0, kMostChosenHelpers);
}

std::shared_ptr<HelperPool> or_none(std::shared_ptr<HelperPool> helpers) {
  return helpers ? std::move(helpers) : std::make_shared<HelperPool>();
}

HelperPool::HelperPool(const HelperOptions& options) : options_(options) {
  const SignalsBlocked signals;
  threads_.reserve(static_cast<std::size_t>(options_.threads));
  try {
    for (int number = 0; number < options_.threads; ++number) {
      threads_.emplace_back([this] {
        give_way_to_others();
        help();
      });
      pthread_setname_np(threads_.back().native_handle(),
                         ("hvdtune-help-" + std::to_string(number)).c_str());
      clockid_t clock = 0;
      if (pthread_getcpuclockid(threads_.back().native_handle(), &clock) == 0) {
        clocks_.push_back(clock);
      }
    }
  } catch (const std::system_error& error) {
    HVD_LOG(kWarning) << "only " << threads_.size() << " of " << options_.threads
                      << " reduction threads (HVDTUNE_REDUCTION_THREADS) could be started: "
                      << error.what();
  }
}

void HelperPool::stop() {
  if (threads_.empty()) return;
  left_.store(kStop, std::memory_order_seq_cst);
  futex_wake(&left_, kWakeAll);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  clocks_.clear();
}

Nanos HelperPool::cpu_since_asked() {
  if (!std::exchange(called_, false) || clocks_.empty()) return 0;
  Nanos all = 0;
  for (const clockid_t clock : clocks_) all += thread_cpu_now(clock);
  return all - std::exchange(cpu_told_, all);
}

void HelperPool::run(Task task) {
  const std::size_t most = (threads_.size() + 1) * kPiecesPerThread;
  const std::size_t pieces = std::min(task.bytes / options_.least_piece, most);
  task.piece = (task.bytes / pieces + kCacheLine - 1) / kCacheLine * kCacheLine;
  task.pieces = static_cast<std::uint32_t>((task.bytes + task.piece - 1) / task.piece);
  task_ = task;
  called_ = true;
  undone_.store(task.pieces, std::memory_order_relaxed);
  left_.store(task.pieces, std::memory_order_seq_cst);
  // A helper that tries to fall asleep after this check finds that left_ is not 0 any more.
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex_wake(&left_, static_cast<int>(std::min<std::size_t>(threads_.size(), task.pieces - 1)));
  }
  const std::uint32_t done = take_pieces();
  if (undone_.fetch_sub(done, std::memory_order_acq_rel) != done) await_helpers();
}

/// Does pieces until none is left; returns how many.
std::uint32_t HelperPool::take_pieces() {
  std::uint32_t done = 0;
  std::uint32_t left = left_.load(std::memory_order_acquire);
  while (left != 0 && left != kStop) {
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    const std::size_t begin = (task_.pieces - left) * task_.piece;
    task_.work(task_.context, begin, std::min(begin + task_.piece, task_.bytes));
    ++done;
    left = left_.load(std::memory_order_acquire);
  }
  return done;
}

void HelperPool::await_helpers() {
  const auto all_done = [this] { return undone_.load(std::memory_order_acquire) == 0; };
  if (options_.patience.wait(all_done)) return;
  caller_sleeps_.store(1, std::memory_order_seq_cst);
  while (true) {
    const std::uint32_t undone = undone_.load(std::memory_order_seq_cst);
    if (undone == 0) break;
    futex_wait(&undone_, undone, kForever);
  }
  caller_sleeps_.store(0, std::memory_order_relaxed);
}

/// The main loop of a helper.
void HelperPool::help() {
  const auto called = [this] { return left_.load(std::memory_order_acquire) != 0; };
  while (left_.load(std::memory_order_acquire) != kStop) {
    if (!options_.patience.wait(called)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      futex_wait(&left_, 0, kForever);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    const std::uint32_t done = take_pieces();
    if (done == 0) continue;
    order_copies(CopyKind::kStreamed);
    // The last helper to finish wakes the caller.
    if (undone_.fetch_sub(done, std::memory_order_seq_cst) == done &&
        caller_sleeps_.load(std::memory_order_seq_cst) != 0) {
      futex_wake(&undone_, 1);
    }
  }
}

}  // namespace hvdtune
