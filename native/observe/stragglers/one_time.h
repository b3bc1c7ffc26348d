#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// Tells what takes long once (a compilation, the first validation) from what steps usually take,
/// so that means of the last steps can leave it out.
///
/// A step is a pause if it takes `kTimes` the median of the steps beside it, and `kLeast` more. The
/// first pauses of a job are taken for starts; when more than `kMost` have come between usual
/// steps, they are a part of the work (a checkpoint now and then), and count.
class OneTime {
 public:
  static constexpr Nanos kTimes = 5;
  static constexpr Nanos kLeast = 100 * kMillisecond;
  static constexpr std::size_t kFewest = 3;  ///< steps that show what is usual
  static constexpr std::size_t kMost = 2;

  /// A step of this `duration` has ended, after those of `lately`.
  void step(Nanos duration, std::vector<Nanos> lately);
  /// The longest of the steps `lately` that counts in their mean.
  [[nodiscard]] Nanos limit(std::vector<Nanos> lately) const;

 private:
  std::size_t pauses_ = 0;
};

}  // namespace hvdtune
