#pragma once

#include <span>

namespace hvdtune {

/// The text of kernels.cu, complete, for NVRTC.
extern const char* const kKernelsSource;

/// The same, compiled by nvcc when hvdtune was built, for the GPUs that CMakeLists.txt names; empty
/// if there was no nvcc.
std::span<const unsigned char> built_in_kernels();

}  // namespace hvdtune
