#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/operation/operation.h"

namespace hvdtune {

/// Operations that are over and have a continuation to call. The thread that makes progress adds
/// them; the call is made later, when no lock is held.
///
/// Any thread may call any method.
class Completions {
 public:
  /// One more operation will end with add().
  void expect() { expected_.fetch_add(1, std::memory_order_relaxed); }
  /// An expected operation was refused: its add() will not follow.
  void expect_no_more() { expected_.fetch_sub(1, std::memory_order_relaxed); }
  /// Whether such operations are in flight: their submitters may be waiting for them.
  [[nodiscard]] bool expected() const { return expected_.load(std::memory_order_relaxed) > 0; }

  /// The operation is over and has a continuation. The caller may hold locks.
  void add(OperationPtr operation) {
    const std::lock_guard lock(mutex_);
    over_.push_back(std::move(operation));
    any_.store(true, std::memory_order_release);
    expected_.fetch_sub(1, std::memory_order_relaxed);
  }

  /// Whether tell() has anything to do: one load.
  [[nodiscard]] bool any() const { return any_.load(std::memory_order_acquire); }

  /// Calls the continuations of the added operations, each once, in the order of add(). The caller
  /// must hold no lock, since a continuation may submit.
  void tell() {
    while (any()) {
      std::vector<OperationPtr> over;
      {
        const std::lock_guard lock(mutex_);
        over.swap(over_);
        any_.store(false, std::memory_order_release);
      }
      for (OperationPtr& operation : over) {
        const OnDone on_done = std::move(operation->on_done);
        operation->on_done = nullptr;
        on_done(std::move(operation));
      }
    }
  }

 private:
  std::atomic<std::ptrdiff_t> expected_{0};
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<OperationPtr> over_;
};

}  // namespace hvdtune
