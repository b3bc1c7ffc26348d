#include <cstring>

#include "driver.h"
#include "faults.h"

using namespace fake_cuda;  // NOLINT: the functions of the driver have C's names
using namespace hvdtune;    // NOLINT

FAKE_EXPORT CudaResult cuModuleLoadData(CudaModule*, const void*) {
  return CudaResult::kInvalidImage;
}
FAKE_EXPORT CudaResult cuModuleUnload(CudaModule module) {
  return driver().modules.remove(module) ? CudaResult::kSuccess : CudaResult::kInvalidHandle;
}
FAKE_EXPORT CudaResult cuModuleGetFunction(CudaFunction*, CudaModule, const char*) {
  return CudaResult::kNotFound;
}
FAKE_EXPORT CudaResult cuLaunchKernel(CudaFunction, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, unsigned, unsigned, CudaStream, void**, void**) {
  return CudaResult::kInvalidHandle;
}
