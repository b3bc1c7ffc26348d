#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collective/communicator.h"

namespace hvdtune {

/// A longer text is cut to this many bytes, including its terminating zero.
inline constexpr std::size_t kTextBytes = 1024;

/// The texts of all members, in member order. Collective; throws like Communicator::exchange().
std::vector<std::string> exchange_texts(Communicator& control, const std::string& mine);

/// The text of the first member that has a problem, or an empty text; the same on all members.
/// Collective; throws like Communicator::exchange().
std::string first_problem(Communicator& control, const std::string& mine);

/// If a member has a problem, all throw the first one's, as Error(kInvalidArgument). Collective;
/// also throws like Communicator::exchange().
void all_or_none(Communicator& control, const std::string& mine);

}  // namespace hvdtune
