#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// Distinguishes steps that take long only once (a compilation, the first validation) from usual
/// ones, so that means of the last steps can leave them out.
///
/// A step is a pause if it takes `kTimes` the median of the recent steps, and at least `kLeast`
/// longer. The first pauses of a job count as parts of its start. After more than `kMost` of them
/// between usual steps, pauses are a part of the work (regular checkpoints), and count.
class OneTime {
 public:
  static constexpr Nanos kTimes = 5;
  static constexpr Nanos kLeast = 100 * kMillisecond;
  static constexpr std::size_t kFewest = 3;  ///< steps needed to know what is usual
  static constexpr std::size_t kMost = 2;

  /// A step of this `duration` has ended, after the steps `lately`.
  void step(Nanos duration, std::vector<Nanos> lately);
  /// The longest duration that counts in the mean of the steps `lately`.
  [[nodiscard]] Nanos limit(std::vector<Nanos> lately) const;

 private:
  std::size_t pauses_ = 0;
};

}  // namespace hvdtune
