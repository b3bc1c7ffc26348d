#pragma once

#include <atomic>
#include <cstdint>

namespace hvdtune {

/// State of the current round of a slot, as one word in shared memory. A round begins when the
/// previous one is complete, and is complete when every member has arrived. Members arrive in one
/// of two ways:
///
///   direct     the member has published its data and waits for the others': a small operation
///              needs no coordinator when everybody is waiting for it
///   announced  the coordinator knows of the operation and will schedule it
///
/// One member that announces overrules the direct ones: they withdraw and announce instead. So in a
/// complete round, either all members are direct or all have announced.
///
/// Everything is sequentially consistent: a member that sees a direct round complete also sees all
/// that its members wrote before they arrived.
class SlotRound {
 public:
  enum class State : std::uint8_t { kOpen, kComplete, kOverruled };

  /// Result of an arrival.
  struct Arrival {
    bool accepted = false;    ///< false: nothing has changed
    bool last = false;        ///< it completed the round
    std::uint32_t round = 0;  ///< the round that it concerned
  };

  /// Number of completed rounds; its parity selects one of two buffers.
  [[nodiscard]] std::uint32_t round() const { return unpack(load()).round; }

  /// `round`: the value of round() for which this member has published its data. Not accepted if
  /// another member has announced already, or if the round is over: a member that is late to
  /// announce an operation that ended without it (rejected, or empty) may complete the round
  /// meanwhile.
  Arrival arrive_direct(std::uint32_t members, std::uint32_t round) {
    return update([members, round](Fields& fields, Arrival& arrival) {
      if (fields.round != round || fields.announced > 0 || fields.overruled) return;
      arrival.accepted = true;
      ++fields.direct;
      arrival.last = fields.direct == members;
      if (arrival.last) fields = {fields.round + 1, 0, 0, false};
    });
  }

  /// `ranks` members arrive through the coordinator. More than one only if the coordinator does so
  /// for ranks that have joined and will never arrive themselves.
  Arrival announce(std::uint32_t members, std::uint32_t ranks = 1) {
    return update([members, ranks](Fields& fields, Arrival& arrival) {
      arrival.accepted = true;
      add_announced(fields, arrival, members, ranks);
    });
  }

  /// What a member that arrived directly in `round` must do: keep waiting, or not.
  [[nodiscard]] State state(std::uint32_t round) const {
    const Fields fields = unpack(load());
    if (fields.round != round) return State::kComplete;
    return fields.overruled ? State::kOverruled : State::kOpen;
  }

  /// A direct member of `round` announces instead. Not accepted if the round is complete.
  Arrival change_to_announced(std::uint32_t round, std::uint32_t members) {
    return update([round, members](Fields& fields, Arrival& arrival) {
      if (fields.round != round) return;
      arrival.accepted = true;
      --fields.direct;
      add_announced(fields, arrival, members, 1);
    });
  }

  /// A direct member of `round` leaves it, because the slot has been removed. Not accepted if the
  /// round is complete.
  Arrival withdraw(std::uint32_t round) {
    return update([round](Fields& fields, Arrival& arrival) {
      if (fields.round != round) return;
      arrival.accepted = true;
      --fields.direct;
      fields.overruled = true;
    });
  }

  /// Prepares the word for another tensor; no member may be in a round. The count of rounds goes
  /// on, past the data that may be kept for the last one (see DirectStage).
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
