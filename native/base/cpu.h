#pragma once

namespace hvdtune {

/// CPUs that this process may use: its affinity mask, limited by the cgroup's quota. At least 1.
int usable_cpus();

/// Pins the calling thread to one CPU. False when the kernel refuses (no such CPU, not allowed).
bool pin_this_thread(int cpu);

}  // namespace hvdtune
