#pragma once

#include <functional>
#include <vector>

namespace hvdtune {

/// Calls all of them beside each other, and returns when the last one has returned. They do not
/// throw.
void at_once(const std::vector<std::function<void()>>& calls);

}  // namespace hvdtune
