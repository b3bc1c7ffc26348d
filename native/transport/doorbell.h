#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace hvdtune {

/// How urgent a ring is, and how urgent one must be to wake a sleeper.
enum class Urgency : std::uint32_t {
  kNone = 0,    ///< as sleeper's threshold: nobody sleeps, no wake-up is needed
  kNormal = 1,  ///< new work
  kUrgent = 2,  ///< somebody is blocked; also wakes a sleeper that collects until a deadline
};

/// Wakes one rank's progress thread. Lives in shared memory; any rank rings, the owner sleeps.
/// When the owner is awake, ringing costs one atomic addition and no system call.
class Doorbell {
 public:
  void ring(Urgency urgency) {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t threshold = threshold_.load(std::memory_order_seq_cst);
    if (threshold != 0 && static_cast<std::uint32_t>(urgency) >= threshold) {
      // One ringer makes the system call; the owner sets the threshold again before it sleeps.
      if (threshold_.exchange(0, std::memory_order_seq_cst) != 0) futex_wake(&rings_, kWakeAll);
    }
  }

  /// Take this before looking for work; sleep() with it returns at once if someone rang since.
  [[nodiscard]] std::uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  /// Owner: from now on rings of at least `urgency` wake the sleeper (kNone: no ring does).
  void arm(Urgency urgency) {
    threshold_.store(static_cast<std::uint32_t>(urgency), std::memory_order_seq_cst);
  }

  /// Owner: sleeps unless someone rang since `seen`, at most until `deadline`.
  void sleep(std::uint32_t seen, Nanos deadline) const { futex_wait(&rings_, seen, deadline); }

  /// Wakes the sleeper whatever its threshold.
  void wake() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&rings_, kWakeAll);
  }

  /// What this rank's user thread is blocked on: 0 = nothing, see engine/blocked.h.
  std::atomic<std::uint64_t> blocked_on{0};

 private:
  alignas(64) std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> threshold_{0};
};

}  // namespace hvdtune
