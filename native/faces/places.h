// Numbers of this rank's place in its job, for graphs that read them whenever a program runs.
#pragma once

#include <cstdint>

namespace hvdtune::faces {

enum class Place : int { kSize, kIncluded, kLocalSize, kRank, kLocalRank, kCount };

/// One of Horovod's numbers; for a process set: its size, or whether this rank is in it (1, 0; -1
/// before init, -3 if there is no such set). Throws Error(kInvalidArgument) for the size of a set
/// that does not exist; all except kIncluded throw Error(kNotInitialized) if running_engine() does.
[[nodiscard]] std::int32_t place(Place which, std::uint32_t process_set = 0);

}  // namespace hvdtune::faces
