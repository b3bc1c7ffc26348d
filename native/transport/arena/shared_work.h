#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace hvdtune {

/// Work on a slot's round for which no rank depends on another: it is cut into pieces, and any
/// running rank takes the next piece. One word in shared memory. The work of a round begins with
/// the first claim and ends in one of two ways, the same for all members:
///
///   complete   every piece is done; a member that sees this sees all that was done before done()
///   given up   a member has waited for too long for pieces that others have claimed (they may be
///              stopped, or dead): nobody relies on any piece of it
///
/// The caller ensures that no member enters a round before all have left the previous one.
class SharedWork {
 public:
  enum class State : std::uint8_t { kOpen, kComplete, kGivenUp };

  /// The number of a piece to do; nothing if all are taken, or the work was given up.
  std::optional<std::uint32_t> claim(std::uint32_t round, std::uint32_t pieces) {
    std::optional<std::uint32_t> claimed;
    update(round, [&](Fields& fields) {
      claimed.reset();
      if (fields.given_up || fields.claimed == pieces) return;
      claimed = fields.claimed++;
    });
    return claimed;
  }

  /// A claimed piece is done.
  void done(std::uint32_t round) {
    update(round, [](Fields& fields) { ++fields.done; });
  }

  [[nodiscard]] State state(std::uint32_t round, std::uint32_t pieces) const {
    return state_of(as_of(round, word_.load(std::memory_order_seq_cst)), pieces);
  }

  /// Gives up the work, so that nobody waits for it any more. Returns how it has ended.
  State give_up(std::uint32_t round, std::uint32_t pieces) {
    State ended = State::kOpen;
    update(round, [&](Fields& fields) {
      if (fields.done != pieces) fields.given_up = true;
      ended = state_of(fields, pieces);
    });
    return ended;
  }

 private:
  struct Fields {
    std::uint32_t round;
    std::uint32_t claimed;
    std::uint32_t done;
    bool given_up;
  };

  // round: 32 bits, claimed: 16, done: 15, given_up: 1
  static std::uint64_t pack(const Fields& fields) {
    return std::uint64_t{fields.round} << 32 | std::uint64_t{fields.claimed} << 16 |
           std::uint64_t{fields.done} << 1 | (fields.given_up ? 1U : 0U);
  }
  /// A word of an earlier round means that nothing has begun.
  static Fields as_of(std::uint32_t round, std::uint64_t word) {
    if (static_cast<std::uint32_t>(word >> 32) != round) return {round, 0, 0, false};
    return {round, static_cast<std::uint32_t>(word >> 16 & 0xffff),
            static_cast<std::uint32_t>(word >> 1 & 0x7fff), (word & 1) != 0};
  }
  static State state_of(const Fields& fields, std::uint32_t pieces) {
    if (fields.given_up) return State::kGivenUp;
    return fields.done == pieces ? State::kComplete : State::kOpen;
  }

  template <typename Change>
  void update(std::uint32_t round, Change&& change) {
    std::uint64_t before = word_.load(std::memory_order_seq_cst);
    while (true) {
      Fields fields = as_of(round, before);
      change(fields);
      if (word_.compare_exchange_weak(before, pack(fields), std::memory_order_seq_cst)) return;
    }
  }

  std::atomic<std::uint64_t> word_{0};
};

static_assert(sizeof(SharedWork) == sizeof(std::uint64_t));

}  // namespace hvdtune
