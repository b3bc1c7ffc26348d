#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace hvdtune {

/// CPU time of the thread that executes batches. Asking the kernel for it costs half a microsecond,
/// twice per batch, which is a large part of a short batch. So only one short batch in kEvery is
/// measured, and counts for the others. The time includes the cost of asking, which about equals
/// the unmeasured cost of finding and finishing a short batch's operations. One thread at a time.
class BatchCpu {
 public:
  static constexpr std::uint32_t kEvery = 16;
  static constexpr std::size_t kFewOperations = 4;
  static constexpr std::int64_t kFewBytes = 64 << 10;

  /// Whether a batch is short, judged before it runs.
  static bool is_short(std::size_t operations, std::int64_t bytes) {
    return operations <= kFewOperations && bytes <= kFewBytes;
  }

  /// \param now the thread's CPU time: thread_cpu_now, except in tests
  template <typename Clock>
  void begin(bool is_short, Clock&& now) {
    counts_for_ = 1;
    if (is_short) {
      counts_for_ = ++passed_over_ >= kEvery ? std::exchange(passed_over_, 0U) : 0U;
    }
    if (counts_for_ > 0) began_ = now();
  }
  /// The CPU time to add for the batch that ends, and for the batches that it represents.
  template <typename Clock>
  [[nodiscard]] Nanos end(Clock&& now) const {
    return counts_for_ > 0 ? (now() - began_) * counts_for_ : 0;
  }

 private:
  std::uint32_t passed_over_ = 0;
  std::uint32_t counts_for_ = 1;
  Nanos began_ = 0;
};

}  // namespace hvdtune
