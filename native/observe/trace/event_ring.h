#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/clock.h"

namespace hvdtune {

enum class EventKind : std::uint8_t {
  kRow,             ///< text = tensor name, value = pid: the meaning of `row` from now on
  kShape,           ///< text = shape of the tensor of `row` from now on
  kNegotiateStart,  ///< detail = OpKind
  kRankReady,       ///< value = rank
  kSpanStart,       ///< label
  kSpanEnd,
  kOpEnd,  ///< detail = DType, value = bytes, batch
  kCycleStart,
  kInstant,  ///< text = name
};

/// One event as the engine records it: fixed size, not formatted.
struct EventRecord {
  Nanos time = 0;
  const char* label = nullptr;  ///< static storage
  std::int64_t value = 0;
  std::uint64_t batch = 0;
  std::uint32_t row = 0;
  std::uint16_t text_size = 0;  ///< set by EventRing::push
  EventKind kind = EventKind::kCycleStart;
  std::uint8_t detail = 0;
};
static_assert(sizeof(EventRecord) == 40 && std::is_trivially_copyable_v<EventRecord>);

/// Bounded ring of event records, each followed by its text, if any, in further slots. One thread
/// pushes, one drains; neither ever waits. Memory is first touched when it is used.
class EventRing {
 public:
  /// Longer texts are cut.
  static constexpr std::size_t kMaxText = 4000;

  /// \param capacity slots of sizeof(EventRecord) bytes; rounded up to a power of two.
  explicit EventRing(std::size_t capacity)
      : capacity_(std::bit_ceil(capacity)),
        slots_(std::make_unique_for_overwrite<EventRecord[]>(capacity_)) {}

  static std::size_t slots_for(std::string_view text) {
    return 1 + (std::min(text.size(), kMaxText) + sizeof(EventRecord) - 1) / sizeof(EventRecord);
  }

  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Producer. True if `slots` are free; they stay free until the producer uses them.
  bool has_room(std::size_t slots) {
    if (capacity_ - (pushed_local_ - drained_seen_) >= slots) return true;
    drained_seen_ = drained_.load(std::memory_order_acquire);
    return capacity_ - (pushed_local_ - drained_seen_) >= slots;
  }

  /// Producer. Needs has_room(slots_for(text)).
  void push(EventRecord record, std::string_view text = {}) {
    text = text.substr(0, kMaxText);
    record.text_size = static_cast<std::uint16_t>(text.size());
    slot(pushed_local_++) = record;
    for (; !text.empty(); text.remove_prefix(std::min(text.size(), sizeof(EventRecord)))) {
      std::memcpy(static_cast<void*>(&slot(pushed_local_++)), text.data(),
                  std::min(text.size(), sizeof(EventRecord)));
    }
    pushed_.store(pushed_local_, std::memory_order_release);
  }

  /// Producer. Slots that the consumer had not read when last checked: an upper bound.
  [[nodiscard]] std::size_t used() const { return pushed_local_ - drained_seen_; }

  /// Consumer. Hands the available events, at most about `limit` slots of them, to `consume(const
  /// EventRecord&, std::string_view text)`. Returns false if there were none.
  template <class Consume>
  bool drain(std::size_t limit, Consume&& consume) {
    const std::size_t begin = drained_.load(std::memory_order_relaxed);
    const std::size_t end = pushed_.load(std::memory_order_acquire);
    std::size_t at = begin;
    while (at != end && at - begin < limit) {
      const EventRecord record = slot(at++);
      text_.clear();
      while (text_.size() < record.text_size) {
        text_.append(reinterpret_cast<const char*>(&slot(at++)),
                     std::min(record.text_size - text_.size(), sizeof(EventRecord)));
      }
      consume(record, std::string_view(text_));
    }
    drained_.store(at, std::memory_order_release);
    return at != begin;
  }

 private:
  EventRecord& slot(std::size_t index) { return slots_[index & (capacity_ - 1)]; }

  std::size_t capacity_;
  std::unique_ptr<EventRecord[]> slots_;
  std::size_t pushed_local_ = 0;  // producer's
  std::size_t drained_seen_ = 0;  // producer's
  std::string text_;              // consumer's
  alignas(64) std::atomic<std::size_t> pushed_{0};
  alignas(64) std::atomic<std::size_t> drained_{0};
};

}  // namespace hvdtune
