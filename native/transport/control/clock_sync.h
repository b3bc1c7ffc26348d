#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// How far this rank's clock is from rank 0's, found by round trips over the control connection
/// (Cristian, "Probabilistic clock synchronization", 1989). Every rank has one; rank 0's only
/// answers.
///
/// This rank sends at t0 by its clock, rank 0 receives at t1 and answers at t2 by its own, and the
/// answer is here at t3. Then, whatever the two ways took,
///
///     offset = ((t1 - t0) + (t2 - t3)) / 2     is within ± ((t3 - t0) - (t2 - t1)) / 2
///
/// of rank 0's clock minus this one. A reading is the round trip with the least bound of a burst:
/// whoever had to wait for a CPU is passed over.
///
/// turn() and receive() are called by the thread that owns the connection, all else by any.
class ClockSync {
 public:
  using Send = std::function<bool(std::string_view)>;
  static constexpr int kBurst = 16;
  static constexpr Nanos kPeriod = 10 * kSecond;

  /// `send` gives a message to rank 0; false when it cannot. `clock`: this rank's.
  ClockSync(bool is_reference, Send send, std::function<Nanos()> clock = monotonic_now);

  /// A reading soon, and then every kPeriod until stop(). Wake the thread that calls turn().
  void start();
  /// One more reading soon, then none.
  void stop();

  /// When turn() wants to be called again.
  Nanos turn(Nanos now);
  /// False when the message is none of a ClockSync.
  /// \param reply how to answer whoever has sent it
  bool receive(std::string_view message, const Send& reply);

  /// All readings since the object was made, except for the first `skip`. Rank 0's are zero.
  [[nodiscard]] std::vector<ClockReading> readings(std::size_t skip = 0) const;
  /// Whether a reading that start() or stop() asked for is still to come.
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
  std::uint32_t number_ = 0;  // of the round trip under way; an answer to another one is late
  Nanos gives_up_ = 0;
  ClockReading best_;
  bool found_ = false;
  Nanos next_ = kForever;
};

}  // namespace hvdtune
