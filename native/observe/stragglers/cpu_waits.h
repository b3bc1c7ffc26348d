#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// How long the main threads of this host's ranks have waited for a CPU, by the kernel's count
/// (/proc/PID/schedstat): tells a rank that is slow from one that has to wait for its turn. One
/// thread at a time.
class CpuWaits {
 public:
  explicit CpuWaits(std::vector<int> pids) : pids_(std::move(pids)) {}

  /// Steps from one look at the ranks to the next.
  static constexpr std::uint64_t kEvery = 40;

  /// A step has ended in which a rank may have been late; numbers ascend, and shorter steps need
  /// not be told of. Looks at the ranks if the last look is kEvery steps ago, which takes some
  /// microseconds for each of them.
  void step_ended(std::uint64_t step);
  /// By how much `rank` has waited longer for a CPU than the median rank, a step, since the last
  /// look but one: kEvery to 2 kEvery steps, or fewer where there were no more. 0 where that is
  /// not known.
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
  std::array<Sample, 2> samples_;  // the last look but one, and the last; step 0 = none
};

}  // namespace hvdtune
