#pragma once

#include <cstddef>

#include "device/libraries/cuda_types.h"

namespace hvdtune {

/// Contiguous bytes in device memory.
struct DevicePiece {
  CudaPointer at = 0;
  std::size_t bytes = 0;
};

}  // namespace hvdtune
