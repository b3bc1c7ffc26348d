#pragma once

#include <string>

#include "base/clock.h"

namespace hvdtune {

/// Options of an engine for GPUs. Nothing is loaded before the first tensor on a GPU is submitted.
struct DeviceOptions {
  std::string cuda;                                       ///< libcuda's path; empty: none, and
  std::string no_cuda = "no CUDA driver was looked for";  ///< … why, without a full stop
  std::string nccl;  ///< NCCL's path; empty: tensors pass through host memory, and
  std::string no_nccl = "no NCCL was looked for";
  std::string nvrtc;     ///< NVRTC's path; empty: none
  std::string profiler;  ///< path of a profiler's library that records NVTX ranges; empty: none
  /// Operations count as done when they are enqueued; a reader of a result must let its stream
  /// wait.
  bool async_completion = false;
  int min_ctas = 0;  ///< of NCCL; 0 = its choice
  int max_ctas = 0;
  int cga_cluster_size = -1;  ///< … -1 = its choice
  int cta_policy = -1;
  bool share_gpu = false;  ///< ranks may be on one GPU
  /// Allreduces within each host first use NCCL between hosts; otherwise host memory.
  bool between_by_nccl = true;
  bool tunes_bypass = false;  ///< find out whether batches can bypass NCCL, even if none does
  /// Timeout for NCCL to connect, and for waits for other ranks within its calls.
  Nanos timeout = 120 * kSecond;
};

}  // namespace hvdtune
