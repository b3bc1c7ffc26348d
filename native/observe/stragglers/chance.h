#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// What a step was held up by.
struct Charge {
  int who = -1;    ///< a rank, or a host; -1: nobody
  Nanos cost = 0;  ///< for how long
};

/// What chance alone does among equal ones: nobody is blamed for it. An upper bound of the
/// probability that any one of so many equal `parties` causes as much in these steps as `who` did:
/// each step is held up by any of them with the same probability, for as long as it was. Chernoff's
/// bound, times the parties that are looked at: hvdtune/timeline/analysis/chance.py says how. Rare
/// long delays weigh as rare long delays do: one of them proves nothing.
double caused_by_chance(const std::vector<Charge>& steps, int who, std::size_t parties);

}  // namespace hvdtune
