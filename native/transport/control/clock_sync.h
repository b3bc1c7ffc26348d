#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// Measures the difference between this rank's clock and rank 0's with round trips over the control
/// connection (Cristian, "Probabilistic clock synchronization", 1989). Every rank has a ClockSync;
/// rank 0's only answers.
///
/// This rank sends at t0 of its clock, rank 0 receives at t1 and answers at t2 of its own clock,
/// and this rank receives the answer at t3. Then, however long the two directions took,
///
///     offset = ((t1 - t0) + (t2 - t3)) / 2     is within ± ((t3 - t0) - (t2 - t1)) / 2
///
/// of rank 0's clock minus this one. A reading is the round trip with the least bound of a burst:
/// trips that were delayed by waiting for a CPU are ignored.
///
/// The thread that owns the connection calls turn() and receive(); any thread may call the rest.
class ClockSync {
 public:
  using Send = std::function<bool(std::string_view)>;
  static constexpr int kBurst = 16;
  static constexpr Nanos kPeriod = 10 * kSecond;

  /// `send` sends a message to rank 0; it returns false if it cannot. `clock`: this rank's.
  ClockSync(bool is_reference, Send send, std::function<Nanos()> clock = monotonic_now);

  /// Takes a reading soon, and then every kPeriod until stop(). The caller must wake the thread
  /// that calls turn().
  void start();
  /// Takes one more reading soon, then none.
  void stop();

  /// Does what is due at `now`; returns when it must be called again.
  Nanos turn(Nanos now);
  /// False if the message is not from a ClockSync. \param reply how to answer the sender
  bool receive(std::string_view message, const Send& reply);

  /// All readings since the object was made, except for the first `skip`. Rank 0's are zero.
  [[nodiscard]] std::vector<ClockReading> readings(std::size_t skip = 0) const;
  /// Whether a reading that start() or stop() asked for has not been taken yet.
  [[nodiscard]] bool pending() const;

 private:
  void finish_burst(Nanos now);
  bool ask();

  const bool is_reference_;
  const Send send_;
  const std::function<Nanos()> clock_;

  mutable std::mutex mutex_;
  std::vector<ClockReading> readings_;
  bool repeating_ = false;
  bool wanted_ = false;  // as soon as possible
  // The burst under way.
  int left_ = 0;
  std::uint32_t number_ = 0;  // of the current round trip; answers with other numbers are late
  Nanos gives_up_ = 0;
  ClockReading best_;
  bool found_ = false;
  Nanos next_ = kForever;
};

}  // namespace hvdtune
