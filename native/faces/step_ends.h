// Ends of training steps that a framework's graph tells of, in the step itself and without Python.
#pragma once

#include <cstdint>

namespace hvdtune::faces {

/// A step of `owner` ends here; recordings count it. Only those of one owner count: of the first,
/// until another has ended many steps since it ended one. Nothing before init, after shutdown, and
/// once the program tells of its steps itself. Any thread.
void end_step(std::int64_t owner);
/// How many have counted in this process so far.
[[nodiscard]] std::uint64_t steps_ended();
/// From now on the program tells of its steps itself.
void leave_steps_to_program();

}  // namespace hvdtune::faces
