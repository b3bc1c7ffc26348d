// Ends of training steps that a framework's graph reports, within the step and without Python.
#pragma once

#include <cstdint>

namespace hvdtune::faces {

/// A step of `owner` ends here; recordings count it. Only one owner's steps count: the first's,
/// until others have ended many steps since its last. Does nothing before init, after shutdown, and
/// once the program reports its steps itself. Any thread.
void end_step(std::int64_t owner);
/// Number of steps counted in this process so far.
[[nodiscard]] std::uint64_t steps_ended();
/// From now on the program reports its steps itself.
void leave_steps_to_program();

}  // namespace hvdtune::faces
