#pragma once

#include <atomic>
#include <cstdint>

#include "base/threads/futex.h"

namespace hvdtune {

/// Urgency of a ring, and the least urgency that wakes a sleeper.
enum class Urgency : std::uint32_t {
  kNone = 0,    ///< as a sleeper's threshold: no ring wakes
  kNormal = 1,  ///< new work
  kUrgent = 2,  ///< somebody is blocked; also wakes a sleeper that collects until a deadline
};

/// The threads that can sleep on a doorbell, even both at once; a ring wakes the one that armed it.
enum class Sleeper : std::uint32_t {
  kThread = 1,  ///< the engine's own thread
  kCaller = 2,  ///< a user's thread that is blocked and drives the engine
};

/// Wakes one rank's progress. Lives in shared memory; any rank rings, the owner sleeps. When the
/// owner is awake, ringing costs one atomic addition and no system call.
class Doorbell {
 public:
  void ring(Urgency urgency) {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t armed = armed_.load(std::memory_order_seq_cst);
    if (armed == 0 || static_cast<std::uint32_t>(urgency) < (armed & kUrgencyMask)) return;
    // One ringer makes the system call; the owner arms again before it sleeps.
    const std::uint32_t taken = armed_.exchange(0, std::memory_order_seq_cst);
    if (taken == 0) return;
    // A sleeper that knows of this ring and is not asleep yet may have armed the doorbell again
    // since the exchange above. Another ring keeps that sleeper from falling asleep unarmed.
    rings_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&rings_, kWakeAll, taken >> kSleeperShift);
  }

  /// sleep() with this value returns at once if someone has rung since. Read it before arm(), and
  /// look for work once more after arm().
  [[nodiscard]] std::uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  /// Owner: from now on rings of at least `urgency` wake `sleeper` (kNone: none does).
  void arm(Urgency urgency, Sleeper sleeper) {
    const auto threshold = static_cast<std::uint32_t>(urgency);
    const auto who = static_cast<std::uint32_t>(sleeper) << kSleeperShift;
    armed_.store(threshold == 0 ? 0 : threshold | who, std::memory_order_seq_cst);
  }

  /// Owner: sleeps unless someone rang since `seen`, at most until `deadline`.
  void sleep(std::uint32_t seen, Sleeper sleeper, Nanos deadline) const {
    futex_wait(&rings_, seen, deadline, static_cast<std::uint32_t>(sleeper));
  }

  /// Wakes one sleeper, whatever urgency it has armed.
  void wake(Sleeper sleeper) {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&rings_, kWakeAll, static_cast<std::uint32_t>(sleeper));
  }

  /// Wakes everybody.
  void wake_all() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&rings_, kWakeAll);
  }

  /// What this rank's user thread is blocked on: 0 = nothing, see engine/job/blocked.h.
  std::atomic<std::uint64_t> blocked_on{0};

 private:
  static constexpr std::uint32_t kUrgencyMask = 0xff;
  static constexpr std::uint32_t kSleeperShift = 8;

  alignas(64) std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> armed_{0};
};

}  // namespace hvdtune
