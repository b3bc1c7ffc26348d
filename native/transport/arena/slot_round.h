#pragma once

#include <atomic>
#include <cstdint>

namespace hvdtune {

/// How far the current round of a slot is, as one word in shared memory. A round begins when the
/// one before it is complete, and is complete when every member has arrived. Members arrive in one
/// of two ways:
///
///   direct     it has published its data and waits for the others': a small operation needs no
///              coordinator when everybody is waiting for it
///   announced  the coordinator knows of it and will schedule it
///
/// One member that announces overrules the direct ones: they withdraw and announce, too. So either
/// all of a round are direct, or all end up announced.
///
/// Everything is sequentially consistent: whoever sees a direct round complete also sees what its
/// members wrote before they arrived.
class SlotRound {
 public:
  enum class State : std::uint8_t { kOpen, kComplete, kOverruled };

  /// What an arrival has led to.
  struct Arrival {
    bool accepted = false;    ///< false: nothing has changed
    bool last = false;        ///< it completed the round
    std::uint32_t round = 0;  ///< that it was about
  };

  /// The rounds that were completed: which of two buffers is to be used.
  [[nodiscard]] std::uint32_t round() const { return unpack(load()).round; }

  /// `round`: what round() said, and this member's data were published for. Not accepted when
  /// another member has announced already, or the round is over: a member that was late to announce
  /// an operation that ended without it (rejected, or empty) may complete it meanwhile.
  Arrival arrive_direct(std::uint32_t members, std::uint32_t round) {
    return update([members, round](Fields& fields, Arrival& arrival) {
      if (fields.round != round || fields.announced > 0 || fields.overruled) return;
      arrival.accepted = true;
      ++fields.direct;
      arrival.last = fields.direct == members;
      if (arrival.last) fields = {fields.round + 1, 0, 0, false};
    });
  }

  /// `ranks` members (more than one: those who have joined and never will) arrive by way of the
  /// coordinator.
  Arrival announce(std::uint32_t members, std::uint32_t ranks = 1) {
    return update([members, ranks](Fields& fields, Arrival& arrival) {
      arrival.accepted = true;
      add_announced(fields, arrival, members, ranks);
    });
  }

  /// Whether a direct arrival in `round` is still waited with.
  [[nodiscard]] State state(std::uint32_t round) const {
    const Fields fields = unpack(load());
    if (fields.round != round) return State::kComplete;
    return fields.overruled ? State::kOverruled : State::kOpen;
  }

  /// A direct member of `round` announces instead. Not accepted when the round is complete.
  Arrival change_to_announced(std::uint32_t round, std::uint32_t members) {
    return update([round, members](Fields& fields, Arrival& arrival) {
      if (fields.round != round) return;
      arrival.accepted = true;
      --fields.direct;
      add_announced(fields, arrival, members, 1);
    });
  }

  /// A direct member of `round` leaves it altogether: the slot is no more. Not accepted when the
  /// round is complete.
  Arrival withdraw(std::uint32_t round) {
    return update([round](Fields& fields, Arrival& arrival) {
      if (fields.round != round) return;
      arrival.accepted = true;
      --fields.direct;
      fields.overruled = true;
    });
  }

  /// For another tensor: nobody is in it. The rounds count on, past what may be kept for the last
  /// one (see DirectStage).
  void reset() { word_.store(pack({round() + 2, 0, 0, false}), std::memory_order_seq_cst); }

 private:
  struct Fields {
    std::uint32_t round;
    std::uint32_t direct;
    std::uint32_t announced;
    bool overruled;
  };

  static void add_announced(Fields& fields, Arrival& arrival, std::uint32_t members,
                            std::uint32_t ranks) {
    fields.overruled = true;
    fields.announced += ranks;
    arrival.last = fields.announced == members;
    if (arrival.last) fields = {fields.round + 1, 0, 0, false};
  }

  // round: 32 bits, direct: 15, announced: 16, overruled: 1
  static std::uint64_t pack(const Fields& fields) {
    return std::uint64_t{fields.round} << 32 | std::uint64_t{fields.direct} << 17 |
           std::uint64_t{fields.announced} << 1 | (fields.overruled ? 1U : 0U);
  }
  static Fields unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word >> 17 & 0x7fff),
            static_cast<std::uint32_t>(word >> 1 & 0xffff), (word & 1) != 0};
  }
  [[nodiscard]] std::uint64_t load() const { return word_.load(std::memory_order_seq_cst); }

  template <typename Change>
  Arrival update(Change&& change) {
    std::uint64_t before = load();
    while (true) {
      Fields fields = unpack(before);
      Arrival arrival;
      arrival.round = fields.round;
      change(fields, arrival);
      if (word_.compare_exchange_weak(before, pack(fields), std::memory_order_seq_cst)) {
        return arrival;
      }
    }
  }

  std::atomic<std::uint64_t> word_{0};
};

static_assert(sizeof(SlotRound) == sizeof(std::uint64_t));

}  // namespace hvdtune
