#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "observe/capture/capture_records.h"
#include "observe/capture/record_ring.h"

namespace hvdtune::capture {

/// Tensors of one batch whose names have consecutive numbers, or are all the same: a repeated step
/// consists of a few such runs. For each tensor after the first, only the time since the previous
/// submission is stored.
struct TensorRun {
  std::uint32_t name = kNone;  ///< of the first
  std::uint32_t batch = 0;
  Nanos submitted = 0;  ///< the first
  std::uint32_t tensors = 0;
  std::uint8_t width = 2;   ///< bytes of each time after the first: 2 (unsigned) or 4 (signed)
  std::uint8_t stride = 1;  ///< from a tensor's name to the next one's: 0 or 1
  std::uint16_t pad = 0;
};
static_assert(has_layout<TensorRun, 24> && offsetof(TensorRun, tensors) == 16 &&
              offsetof(TensorRun, width) == 20 && offsetof(TensorRun, stride) == 21);

/// Tensors in a block's format; the memory is reused for the next block.
/// hvdtune/timeline/record/tensor_runs.py reads them.
class PackedTensors {
 public:
  std::vector<TensorRun> runs;
  std::vector<std::int32_t> wide;     ///< the times of the runs of width 4, in order
  std::vector<std::uint16_t> narrow;  ///< the times of the runs of width 2
  std::size_t tensors = 0;

  void clear();
  /// Size of bytes().
  [[nodiscard]] std::size_t size() const;
  /// All runs, then `wide`, then `narrow`. Valid until the next call.
  [[nodiscard]] std::span<const std::byte> bytes();
  /// The tensors one by one. Valid until the next call.
  [[nodiscard]] std::span<const Tensor> unpacked();

 private:
  std::vector<std::byte> bytes_;
  std::vector<Tensor> records_;
};

/// Bounded ring of tensors, which packs them as they are put: a tensor that continues a run takes 2
/// or 4 bytes instead of 16. One thread puts, one takes; neither ever waits. If there is a tensor
/// every few hundred nanoseconds, its bytes are a large part of the cost of recording it: they pass
/// through the ring, base64, and the file's pages.
class TensorRuns {
 public:
  /// \param bytes of memory, most of it for tensors outside of runs
  explicit TensorRuns(std::size_t bytes);

  /// Producer. The consumer does not see the tensor before publish().
  void put(const Tensor& tensor);
  /// Producer. The same for the tensors of one batch, most of which continue a run; it keeps the
  /// run's state in registers. Nothing else may be put before it is destroyed.
  class Batch {
   public:
    Batch(TensorRuns& ring, std::uint32_t batch) : ring_(ring), batch_(batch) {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    ~Batch() { settle(); }

    void put(std::uint32_t name, Nanos submitted) {
      const auto later = static_cast<std::uint64_t>(submitted - last_);
      if (name != next_ || later > UINT16_MAX || at_ == end_) return put_otherwise(name, submitted);
      *at_++ = static_cast<std::uint16_t>(later);
      next_ += stride_;
      last_ = submitted;
    }
    /// Number of tensors put.
    [[nodiscard]] std::uint32_t count() const {
      return count_ + static_cast<std::uint32_t>(at_ - begin_);
    }

   private:
    void put_otherwise(std::uint32_t name, Nanos submitted);
    void settle();

    TensorRuns& ring_;
    const std::uint32_t batch_;
    std::uint32_t count_ = 0;  // before begin_
    // During a narrow run: room for its times, and the expected next tensor.
    std::uint16_t* begin_ = nullptr;
    std::uint16_t* at_ = nullptr;
    std::uint16_t* end_ = nullptr;
    std::uint32_t next_ = kNone;
    std::uint32_t stride_ = 1;
    Nanos last_ = 0;
  };
  /// Producer. Makes all tensors put since the last call visible. If they did not all find room,
  /// drops them and returns false.
  bool publish();
  /// Producer. Whether more than half of any of the memory is used.
  bool half_full();

  /// Consumer. At least the number of tensors that are there.
  [[nodiscard]] std::size_t available() const {
    return published_.load(std::memory_order_acquire) - taken_;
  }
  /// Consumer. Adds available whole runs to `out`, until it holds about `tensors` tensors or
  /// `bytes` bytes. False if there were none.
  bool take(std::size_t tensors, std::size_t bytes, PackedTensors& out);

 private:
  /// Most tensors of a run. take() takes whole runs, so it exceeds its limits by less than this.
  static constexpr std::uint32_t kLongestRun = 1 << 14;

  /// Adds one more tensor to the run.
  template <typename Later>
  void go_on(RecordRing<Later>& ring, Later later, Nanos submitted) {
    room_ = room_ && ring.has_room(1);
    if (room_) ring.put(later);
    ++run_.tensors;
    next_ += run_.stride;
    last_ = submitted;
  }
  void begin_run(const Tensor& tensor);
  void close_run();

  RecordRing<TensorRun> runs_;
  RecordRing<std::int32_t> wide_;
  RecordRing<std::uint16_t> narrow_;
  // The producer's.
  TensorRun run_;  // not yet in its ring; 0 tensors: there is none
  std::uint32_t next_ = kNone;
  Nanos last_ = 0;
  bool room_ = true;
  bool prefer_wide_ = false;
  std::size_t put_ = 0;                    // tensors of closed runs
  std::atomic<std::size_t> published_{0};  // of those
  alignas(64) std::size_t taken_ = 0;      // the consumer's
};

}  // namespace hvdtune::capture
