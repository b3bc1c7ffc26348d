#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/error.h"

namespace hvdtune {
class Engine;
}

namespace hvdtune::python {

/// Adds the class HotCalls, and `collect` to that of engines.
void bind_hot_calls(pybind11::module_& module, pybind11::handle engine_type);

/// Waits for an operation; throws if a signal handler does. The caller holds the interpreter lock,
/// which is released meanwhile.
void wait(Engine& engine, std::int64_t handle);

/// Waits for an operation and fetches its results: (outputs, numbers), or None if there are none.
/// Throws the operation's error.
pybind11::object collect(Engine& engine, std::int64_t handle);

/// Sets the Python exception for `error`.
void raise(const Error& error);

}  // namespace hvdtune::python
