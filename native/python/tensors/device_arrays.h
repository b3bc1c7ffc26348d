#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace hvdtune::python {

/// Adds the class DeviceArray: memory on a GPU that the engine has allocated, for whoever
/// understands `__cuda_array_interface__`.
void bind_device_arrays(pybind11::module_& module);

/// As collect() of a host's operation, of one on a GPU: (outputs, numbers), and a DeviceDone where
/// the GPU may not be done yet.
pybind11::object results_on_device(Operation& operation);

/// A new DeviceArray. Throws Error(kInvalidArgument) for an unknown dtype or as Gpus::use(),
/// Error(kAborted) where there is not enough memory.
pybind11::object device_memory(Engine& engine, std::vector<std::int64_t> shape, int dtype,
                               int device);

}  // namespace hvdtune::python
