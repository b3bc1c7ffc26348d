#pragma once

#include <functional>
#include <vector>

namespace hvdtune {

/// Runs all calls in parallel, and returns after the last one has returned. They must not throw.
void at_once(const std::vector<std::function<void()>>& calls);

}  // namespace hvdtune
