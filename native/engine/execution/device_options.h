#pragma once

#include <string>

#include "base/clock.h"

namespace hvdtune {

/// What an engine needs to know of GPUs. Nothing is loaded before the first tensor on one comes.
struct DeviceOptions {
  std::string cuda;                                       ///< libcuda's path; empty: none, and
  std::string no_cuda = "no CUDA driver was looked for";  ///< … why, without a full stop
  std::string nccl;  ///< NCCL's path; empty: tensors travel through host memory, and
  std::string no_nccl = "no NCCL was looked for";
  std::string nvrtc;     ///< NVRTC's path; empty: none
  std::string profiler;  ///< path of a profiler's library that takes NVTX ranges; empty: none
  /// Operations are done when they are enqueued; whoever reads a result lets his stream wait.
  bool async_completion = false;
  int min_ctas = 0;  ///< of NCCL; 0 = its choice
  int max_ctas = 0;
  int cga_cluster_size = -1;  ///< … -1 = its choice
  int cta_policy = -1;
  bool share_gpu = false;  ///< ranks may be on one GPU
  /// What allreduces that go within each host first have between hosts goes by NCCL; otherwise
  /// through host memory.
  bool between_by_nccl = true;
  bool tunes_bypass = false;  ///< find out whether batches can go past NCCL, also where none does
  /// Of NCCL's connecting and of waits for other ranks within its calls.
  Nanos timeout = 120 * kSecond;
};

}  // namespace hvdtune
