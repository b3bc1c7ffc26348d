#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// How long the main threads of this host's ranks have waited for a CPU, as the kernel counts it
/// (/proc/PID/schedstat): distinguishes a slow rank from one that has to wait for its turn. One
/// thread at a time.
class CpuWaits {
 public:
  explicit CpuWaits(std::vector<int> pids) : pids_(std::move(pids)) {}

  /// Steps between two readings of all ranks.
  static constexpr std::uint64_t kEvery = 40;

  /// A step has ended in which a rank may have been late; numbers ascend, and shorter steps need
  /// not be reported. Reads the ranks' waits if the last reading is kEvery steps ago; this takes a
  /// few microseconds for each rank.
  void step_ended(std::uint64_t step);
  /// How much longer per step `rank` has waited for a CPU than the median rank, since the last
  /// reading but one: over kEvery to 2 kEvery steps, or fewer at the beginning. 0 if it is not
  /// known.
  [[nodiscard]] Nanos excess(int rank, std::uint64_t step) const;
  /// The step from which excess() counts; 0 = none.
  [[nodiscard]] std::uint64_t since() const { return counted_from().step; }

 private:
  struct Sample {
    std::uint64_t step = 0;
    std::vector<Nanos> waits;
  };
  [[nodiscard]] std::vector<Nanos> read() const;
  [[nodiscard]] const Sample& counted_from() const { return samples_[samples_[0].step == 0]; }

  std::vector<int> pids_;
  std::array<Sample, 2> samples_;  // the last reading but one, and the last; step 0 = none
};

}  // namespace hvdtune
