#pragma once

namespace hvdtune {

/// From now on the kernel may take the CPU from the calling thread as soon as another thread wants
/// it that asks for shorter slices, as all do by default; the shares of both stay equal. For
/// threads that work beside a program: one that wakes on the same CPU, to compute on or to start
/// its GPU's next kernel, would otherwise stand there until the kernel's next tick, 4 ms where it
/// has 250 a second. Threads that the calling one starts later inherit it. Does nothing before
/// Linux 6.12, or where it is not allowed.
void give_way_to_others() noexcept;

}  // namespace hvdtune
