#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace hvdtune {

/// CPU time that batches take of the thread that executes them. Asking the kernel for it costs half
/// a microsecond, twice a batch, which is much of a short one: of these one in kEvery is measured,
/// and counts for those that were not. What asking takes is in it: about as much as finding and
/// finishing a short batch's operations take, which is not measured. One thread at a time.
class BatchCpu {
 public:
  static constexpr std::uint32_t kEvery = 16;
  static constexpr std::size_t kFewOperations = 4;
  static constexpr std::int64_t kFewBytes = 64 << 10;

  /// Whether a batch is short, as far as that can be known before.
  static bool is_short(std::size_t operations, std::int64_t bytes) {
    return operations <= kFewOperations && bytes <= kFewBytes;
  }

  /// \param now the thread's CPU time: thread_cpu_now, but for tests
  template <typename Clock>
  void begin(bool is_short, Clock&& now) {
    counts_for_ = 1;
    if (is_short) {
      counts_for_ = ++passed_over_ >= kEvery ? std::exchange(passed_over_, 0U) : 0U;
    }
    if (counts_for_ > 0) began_ = now();
  }
  /// What is to be added for the batch that ends, and those that it stands for.
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
