#pragma once

#include <string>

#include "device/kernel_work.h"

namespace fake_cuda {

/// Runs a kernel of native/device/kernels.cu, all blocks and threads one after the other. The
/// addresses in `work` are the host's. False: there is no such kernel.
bool run_on_host(const std::string& kernel, const hvdtune::KernelWork& work, unsigned blocks,
                 unsigned threads);

}  // namespace fake_cuda
