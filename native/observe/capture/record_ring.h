#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hvdtune::capture {

/// Bounded ring of fixed-size records. One thread puts, one takes; neither ever waits.
template <typename Record>
class RecordRing {
 public:
  /// \param capacity records; rounded down to a power of two.
  explicit RecordRing(std::size_t capacity)
      : capacity_(std::bit_floor(std::max<std::size_t>(capacity, 2))),
        records_(std::make_unique_for_overwrite<Record[]>(capacity_)) {}

  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Producer. True if there is room for `count` records, which then stays free for the producer.
  bool has_room(std::size_t count) {
    if (capacity_ - (put_ - taken_seen_) >= count) return true;
    taken_seen_ = taken_.load(std::memory_order_acquire);
    return capacity_ - (put_ - taken_seen_) >= count;
  }
  /// Producer. Needs room. The consumer does not see the record before publish().
  void put(const Record& record) { records_[put_++ & (capacity_ - 1)] = record; }
  /// Producer. Contiguous memory for the next records; the producer may fill it, and then put all
  /// at once.
  std::span<Record> room() {
    const std::size_t at = put_ & (capacity_ - 1);
    const std::size_t beside = capacity_ - at;
    if (capacity_ - (put_ - taken_seen_) < beside) {
      taken_seen_ = taken_.load(std::memory_order_acquire);
    }
    return {records_.get() + at, std::min(beside, capacity_ - (put_ - taken_seen_))};
  }
  void put_filled(std::size_t count) { put_ += count; }
  void publish() { published_.store(put_, std::memory_order_release); }
  /// Producer. Undoes all puts since publish().
  void take_back() { put_ = published_.load(std::memory_order_relaxed); }
  /// Producer. Records that the consumer had not taken at the last look(): an upper bound.
  [[nodiscard]] std::size_t used() const { return put_ - taken_seen_; }
  /// Producer. The same, but reads the consumer's position.
  std::size_t look() {
    taken_seen_ = taken_.load(std::memory_order_acquire);
    return used();
  }

  /// Consumer. At least the number of records that are there.
  [[nodiscard]] std::size_t available() const {
    return published_.load(std::memory_order_acquire) - taken_.load(std::memory_order_relaxed);
  }
  /// Consumer. Hands at most `limit` contiguous records to `consume(const Record*, count)`. False
  /// if there are none.
  template <typename Consume>
  bool take(std::size_t limit, Consume&& consume) {
    const std::size_t begin = taken_.load(std::memory_order_relaxed);
    const std::size_t end = published_.load(std::memory_order_acquire);
    const std::size_t at = begin & (capacity_ - 1);
    const std::size_t count = std::min({end - begin, capacity_ - at, limit});
    if (count == 0) return false;
    consume(records_.get() + at, count);
    taken_.store(begin + count, std::memory_order_release);
    return true;
  }

 private:
  std::size_t capacity_;
  std::unique_ptr<Record[]> records_;
  std::size_t put_ = 0;         // producer's
  std::size_t taken_seen_ = 0;  // producer's
  alignas(64) std::atomic<std::size_t> published_{0};
  alignas(64) std::atomic<std::size_t> taken_{0};
};

/// The same for any number of producers, and one consumer. Every slot has a turn: 2 n while it
/// waits for the producer of the n-th pass through the ring, 2 n + 1 while it holds that pass's
/// record. A thread that is stopped in the middle of a put delays the later records in the ring,
/// but no thread waits: those records are taken later, or dropped.
template <typename Record>
class SharedRing {
 public:
  /// \param capacity records; rounded down to a power of two.
  explicit SharedRing(std::size_t capacity)
      : capacity_(std::bit_floor(std::max<std::size_t>(capacity, 2))),
        slots_(std::make_unique<Slot[]>(capacity_)) {}

  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Any thread. False if there is no room.
  bool put(const Record& record) {
    std::uint64_t at = put_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[at & (capacity_ - 1)];
      const std::uint64_t turn = slot.turn.load(std::memory_order_acquire);
      const std::uint64_t mine = 2 * (at / capacity_);
      if (turn < mine) return false;  // the previous pass's record is still there
      if (turn > mine) {              // another producer was faster
        at = put_.load(std::memory_order_relaxed);
        continue;
      }
      if (put_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
        slot.record = record;
        slot.turn.store(mine + 1, std::memory_order_release);
        return true;
      }
    }
  }

  /// Consumer. Approximate number of records.
  [[nodiscard]] std::size_t available() const {
    return put_.load(std::memory_order_relaxed) - taken_;
  }
  /// Consumer. False if there is none.
  bool take(Record& record) {
    Slot& slot = slots_[taken_ & (capacity_ - 1)];
    const std::uint64_t full = 2 * (taken_ / capacity_) + 1;
    if (slot.turn.load(std::memory_order_acquire) != full) return false;
    record = slot.record;
    slot.turn.store(full + 1, std::memory_order_release);
    ++taken_;
    return true;
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> turn{0};
    Record record{};
  };

  std::size_t capacity_;
  std::unique_ptr<Slot[]> slots_;
  std::uint64_t taken_ = 0;  // consumer's
  alignas(64) std::atomic<std::uint64_t> put_{0};
};

}  // namespace hvdtune::capture
