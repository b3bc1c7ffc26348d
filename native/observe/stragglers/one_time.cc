#include "observe/stragglers/one_time.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hvdtune {

void OneTime::step(Nanos duration, std::vector<Nanos> lately) {
  if (duration > limit(std::move(lately))) ++pauses_;
}

Nanos OneTime::limit(std::vector<Nanos> lately) const {
  if (pauses_ > kMost || lately.size() < kFewest) return std::numeric_limits<Nanos>::max();
  const auto middle = lately.begin() + static_cast<std::ptrdiff_t>((lately.size() - 1) / 2);
  std::nth_element(lately.begin(), middle, lately.end());
  return std::max(kTimes * *middle, *middle + kLeast);
}

}  // namespace hvdtune
