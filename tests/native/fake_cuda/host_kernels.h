#pragma once

#include <string>

#include "device/kernel_work.h"

namespace fake_cuda {

/// A kernel of native/device/kernels.cu; one of the two, or none where there is no such kernel.
struct HostKernel {
  void (*moves)(hvdtune::KernelWork) = nullptr;
  void (*reduces)(hvdtune::ReduceWork) = nullptr;
};
HostKernel host_kernel(const std::string& name);

/// Runs it, all blocks and threads one after the other. The addresses in `work` are the host's.
void run_on_host(const HostKernel& kernel, const hvdtune::KernelWork& work, unsigned blocks);
void run_on_host(const HostKernel& kernel, const hvdtune::ReduceWork& work, unsigned blocks);

}  // namespace fake_cuda
