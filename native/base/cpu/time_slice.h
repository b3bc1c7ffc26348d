#pragma once

namespace hvdtune {

/// From now on the kernel may take the CPU from the calling thread as soon as a thread with shorter
/// time slices (the default) wants it; both keep equal shares of the CPU. Use it for threads that
/// work beside a program. Without it, a thread of the program that wakes on the same CPU, to
/// compute on or to start its GPU's next kernel, would wait until the kernel's next tick (4 ms at
/// 250 ticks a second). Threads that the calling thread starts later inherit the setting. Does
/// nothing before Linux 6.12, or if the kernel does not allow it.
void give_way_to_others() noexcept;

}  // namespace hvdtune
