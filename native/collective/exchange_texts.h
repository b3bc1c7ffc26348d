#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collective/communicator.h"

namespace hvdtune {

/// A text of more bytes than these is cut, its zero counted.
inline constexpr std::size_t kTextBytes = 1024;

/// What every member says, in member order. Collective; throws as Communicator::exchange().
std::vector<std::string> exchange_texts(Communicator& control, const std::string& mine);

/// The same text on all members: of the first that has a problem, or nothing. Collective; throws as
/// Communicator::exchange().
std::string first_problem(Communicator& control, const std::string& mine);

/// If a member has a problem, all throw the first one's, as Error(kInvalidArgument). Collective;
/// throws as Communicator::exchange() besides.
void all_or_none(Communicator& control, const std::string& mine);

}  // namespace hvdtune
