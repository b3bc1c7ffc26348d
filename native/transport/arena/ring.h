#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/clock.h"

namespace hvdtune {

/// How long a writer waits before it tries a full ring again: no doorbell says that there is room.
inline constexpr Nanos kRetryFullRing = 200 * kMicrosecond;

/// Positions of a byte ring in shared memory. Both only grow; the offset is position mod capacity.
struct RingHead {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
};

/// Records in a ring of bytes: a 4-byte length and the payload, padded to 8. A record never wraps:
/// the rest of the ring is skipped by a marker. Helper of the two rings below.
class RecordRing {
 public:
  RecordRing() = default;
  RecordRing(std::byte* data, std::uint64_t capacity) : data_(data), capacity_(capacity) {}

  /// Longest payload that always fits in an empty ring.
  [[nodiscard]] std::uint64_t max_record() const { return capacity_ / 2 - kHeader - kAlign; }

  /// Writes at position `written` if the reader, at `read`, leaves room. Returns the new position,
  /// or nothing if the ring is too full.
  std::optional<std::uint64_t> write(std::uint64_t written, std::uint64_t read,
                                     std::string_view payload) const {
    HVD_CHECK(payload.size() <= max_record());
    const std::uint64_t need = padded(kHeader + payload.size());
    const std::uint64_t offset = written % capacity_;
    const std::uint64_t skip = capacity_ - offset < need ? capacity_ - offset : 0;
    if (written + skip + need - read > capacity_) return std::nullopt;
    if (skip > 0) put_length(offset, kSkip);
    const std::uint64_t at = (written + skip) % capacity_;
    put_length(at, static_cast<std::uint32_t>(payload.size()));
    std::memcpy(data_ + at + kHeader, payload.data(), payload.size());
    return written + skip + need;
  }

  /// Copies the record at position `read`, which must be before `written`. Returns the position
  /// after it.
  std::uint64_t read(std::uint64_t read, std::string& payload) const {
    std::string_view record;
    const std::uint64_t next = look(read, record);
    payload.assign(record);
    return next;
  }

  /// The same without a copy: `record` is valid until the reader has passed it.
  std::uint64_t look(std::uint64_t read, std::string_view& record) const {
    std::uint64_t at = read % capacity_;
    std::uint32_t length = get_length(at);
    if (length == kSkip) {
      read += capacity_ - at;
      at = 0;
      length = get_length(0);
    }
    HVD_CHECK(length <= max_record());
    record = {reinterpret_cast<const char*>(data_ + at + kHeader), length};
    return read + padded(kHeader + length);
  }

 private:
  static constexpr std::uint64_t kHeader = 4;
  static constexpr std::uint64_t kAlign = 8;
  static constexpr std::uint32_t kSkip = UINT32_MAX;

  static std::uint64_t padded(std::uint64_t bytes) { return (bytes + kAlign - 1) & ~(kAlign - 1); }
  void put_length(std::uint64_t at, std::uint32_t length) const {
    std::memcpy(data_ + at, &length, sizeof(length));
  }
  [[nodiscard]] std::uint32_t get_length(std::uint64_t at) const {
    std::uint32_t length = 0;
    std::memcpy(&length, data_ + at, sizeof(length));
    return length;
  }

  std::byte* data_ = nullptr;
  std::uint64_t capacity_ = 0;
};

/// One producer, one consumer, possibly in different processes; neither ever blocks. The consumer
/// receives whole records in their order.
class MessageRing {
 public:
  MessageRing() = default;
  MessageRing(RingHead* head, std::byte* data, std::uint64_t capacity)
      : head_(head), ring_(data, capacity) {}

  [[nodiscard]] std::uint64_t max_record() const { return ring_.max_record(); }

  /// False when the ring is full: try again after the consumer has read.
  bool push(std::string_view payload) {
    const auto written = head_->written.load(std::memory_order_relaxed);
    const auto read = head_->read.load(std::memory_order_acquire);
    const auto next = ring_.write(written, read, payload);
    if (!next) return false;
    head_->written.store(*next, std::memory_order_release);
    return true;
  }

  /// Calls visit(record) for every record that is in the ring now, without a copy; false if there
  /// is none. Records that are added meanwhile are left for the next call. If `visit` throws, all
  /// records stay in the ring.
  template <typename Visit>
  bool consume(Visit&& visit) {
    auto read = head_->read.load(std::memory_order_relaxed);
    const auto written = head_->written.load(std::memory_order_acquire);
    if (read == written) return false;
    while (read != written) {
      std::string_view record;
      read = ring_.look(read, record);
      visit(record);
    }
    head_->read.store(read, std::memory_order_release);
    return true;
  }

  /// False when there is nothing to read.
  bool pop(std::string& payload) {
    const auto read = head_->read.load(std::memory_order_relaxed);
    if (read == head_->written.load(std::memory_order_acquire)) return false;
    head_->read.store(ring_.read(read, payload), std::memory_order_release);
    return true;
  }

 private:
  RingHead* head_ = nullptr;
  RecordRing ring_;
};

/// Position of one reader of a broadcast ring.
struct alignas(64) ReadCursor {
  std::atomic<std::uint64_t> position{0};
};

/// One producer, `readers` consumers that each read every record, at their own pace.
class BroadcastRing {
 public:
  BroadcastRing() = default;
  BroadcastRing(std::atomic<std::uint64_t>* written, ReadCursor* cursors, int readers,
                std::byte* data, std::uint64_t capacity)
      : written_(written), cursors_(cursors), readers_(readers), ring_(data, capacity) {}

  [[nodiscard]] std::uint64_t max_record() const { return ring_.max_record(); }

  /// Producer only. False if the slowest reader leaves no room.
  bool push(std::string_view payload) {
    const auto written = written_->load(std::memory_order_relaxed);
    const auto next = ring_.write(written, slowest(), payload);
    if (!next) return false;
    written_->store(*next, std::memory_order_release);
    return true;
  }

  /// Position after the last record. A thread that reads it also sees everything that the producer
  /// did before.
  [[nodiscard]] std::uint64_t written() const { return written_->load(std::memory_order_acquire); }

  /// The position that every reader has passed.
  [[nodiscard]] std::uint64_t slowest() const {
    std::uint64_t least = UINT64_MAX;
    for (int reader = 0; reader < readers_; ++reader) {
      const auto at = cursors_[reader].position.load(std::memory_order_acquire);
      if (at < least) least = at;
    }
    return least;
  }

  /// Whether `reader` has passed everything before `position`.
  [[nodiscard]] bool passed(int reader, std::uint64_t position) const {
    return cursors_[reader].position.load(std::memory_order_acquire) >= position;
  }

  /// Copies the next record of `reader` without passing it. False when there is none.
  bool peek(int reader, std::string& payload, std::uint64_t& next) const {
    const auto at = cursors_[reader].position.load(std::memory_order_relaxed);
    if (at == written_->load(std::memory_order_acquire)) return false;
    next = ring_.read(at, payload);
    return true;
  }

  /// Copies the record at `position`, for a reader that keeps its own position. The producer does
  /// not wait for such a reader, so another reader must not have passed the record yet. False if
  /// there is none.
  bool look(std::uint64_t position, std::string& payload, std::uint64_t& next) const {
    if (position == written_->load(std::memory_order_acquire)) return false;
    next = ring_.read(position, payload);
    return true;
  }

  /// Position of `reader`.
  [[nodiscard]] std::uint64_t position(int reader) const {
    return cursors_[reader].position.load(std::memory_order_acquire);
  }

  /// Passes the record that peek() returned; call it after the record's effects on this reader are
  /// complete.
  void advance(int reader, std::uint64_t next) {
    cursors_[reader].position.store(next, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t>* written_ = nullptr;
  ReadCursor* cursors_ = nullptr;
  int readers_ = 0;
  RecordRing ring_;
};

}  // namespace hvdtune
