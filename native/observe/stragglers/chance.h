#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// The party that held up a step.
struct Charge {
  int who = -1;    ///< a rank, or a host; -1: nobody
  Nanos cost = 0;  ///< for how long
};

/// An upper bound of the probability that, by chance alone, any one of `parties` equal parties
/// causes as much in these steps as `who` did. The assumption is that each step's delay is caused
/// by any of them with equal probability. It is Chernoff's bound, times the number of parties:
/// hvdtune/timeline/analysis/chance.py explains it. A single rare long delay proves nothing.
double caused_by_chance(const std::vector<Charge>& steps, int who, std::size_t parties);

}  // namespace hvdtune
