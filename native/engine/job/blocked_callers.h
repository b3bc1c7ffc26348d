#pragma once

#include <atomic>

#include "base/clock.h"
#include "transport/arena/doorbell.h"

namespace hvdtune {

/// This rank's threads that are blocked in the engine. While there are any, they make progress
/// instead of the engine's own thread. Any thread may call any method.
class BlockedCallers {
 public:
  explicit BlockedCallers(Doorbell& doorbell) : doorbell_(doorbell) {}

  [[nodiscard]] bool any() const { return count_.load(std::memory_order_seq_cst) > 0; }
  void come() { count_.fetch_add(1, std::memory_order_seq_cst); }
  /// A caller leaves; returns whether it was the last.
  [[nodiscard]] bool go() { return count_.fetch_sub(1, std::memory_order_seq_cst) == 1; }

  /// Call it when operations are done: another caller may be sleeping for one of them.
  void wake_others() {
    if (count_.load(std::memory_order_seq_cst) > 1) doorbell_.wake(Sleeper::kCaller);
  }

  /// A caller was blocked for `blocked`.
  void add_time(Nanos blocked) { time_.fetch_add(blocked, std::memory_order_relaxed); }
  /// Total time for which callers were blocked.
  [[nodiscard]] Nanos time() const { return time_.load(std::memory_order_relaxed); }

 private:
  Doorbell& doorbell_;
  std::atomic<int> count_{0};
  std::atomic<Nanos> time_{0};
};

}  // namespace hvdtune
