#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace hvdtune::python {

/// Adds the class DeviceArray: GPU memory that the engine has allocated, with
/// `__cuda_array_interface__`.
void bind_device_arrays(pybind11::module_& module);

/// Like collect(), for an operation on a GPU: (outputs, numbers), and a DeviceDone if the GPU may
/// not be done yet.
pybind11::object results_on_device(Operation& operation);

/// A new DeviceArray. Throws Error(kInvalidArgument) for an unknown dtype and like Gpus::use(),
/// Error(kAborted) if there is not enough memory.
pybind11::object device_memory(Engine& engine, std::vector<std::int64_t> shape, int dtype,
                               int device);

}  // namespace hvdtune::python
