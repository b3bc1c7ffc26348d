#pragma once

#include <string>

#include "device/kernels/kernel_work.h"

namespace fake_cuda {

/// What the threads of a block do one after the other, each when all have done what comes before.
struct HostMeeting {
  void (*bring)(const hvdtune::MeetingWork&);
  void (*arrive)(const hvdtune::MeetingWork&);
  bool (*meet)(const hvdtune::MeetingWork&);  ///< one thread's false ends the block
  void (*reduce)(const hvdtune::ReduceWork&);
  void (*leave)(const hvdtune::MeetingWork&);
};

/// A kernel of native/device/kernels/kernels.cu; one of these, or none where there is no such
/// kernel.
struct HostKernel {
  void (*moves)(hvdtune::KernelWork) = nullptr;
  void (*reduces)(hvdtune::ReduceWork) = nullptr;
  const HostMeeting* meets = nullptr;
};
HostKernel host_kernel(const std::string& name);

/// Runs it, all blocks and threads one after the other. The addresses in `work` are the host's.
void run_on_host(const HostKernel& kernel, const hvdtune::KernelWork& work, unsigned blocks);
void run_on_host(const HostKernel& kernel, const hvdtune::ReduceWork& work, unsigned blocks);
void run_on_host(const HostKernel& kernel, const hvdtune::MeetingWork& work, unsigned blocks);

}  // namespace fake_cuda
