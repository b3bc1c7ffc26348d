// Where this rank is in its job, for what frameworks read whenever a program runs.
#pragma once

#include <cstdint>

namespace hvdtune::faces {

enum class Place : int { kSize, kIncluded, kLocalSize, kRank, kLocalRank, kCount };

/// One of Horovod's numbers. Of a process set: its size, and whether this rank is in it (1, 0; -1
/// before init, -3 if there is no such set). Throws Error(kInvalidArgument) for the size of a set
/// that is none; all but kIncluded throw Error(kNotInitialized) where running_engine() does.
[[nodiscard]] std::int32_t place(Place which, std::uint32_t process_set = 0);

}  // namespace hvdtune::faces
