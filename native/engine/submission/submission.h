#pragma once

#include <cstdint>
#include <vector>

#include "engine/operation/operation.h"

namespace hvdtune {

/// What one rank submits.
struct Submission {
  wire::Request request;
  std::vector<TensorMemory> memory;
  std::vector<std::int64_t> splits;  ///< alltoall only
  /// Of tensors on a GPU: they can be used after these streams' work up to now.
  std::vector<CudaStream> streams = {};
};

}  // namespace hvdtune
