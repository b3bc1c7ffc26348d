#pragma once

#include <pybind11/pybind11.h>

namespace hvdtune::python {

// One file a class or topic; each adds its names to the module.
void bind_errors(pybind11::module_& module);
void bind_backends(pybind11::module_& module);
void bind_logging(pybind11::module_& module);
void bind_options(pybind11::module_& module);
/// Names and codes of dtypes, operations, and marks that Python sets: DTYPES, OP_KINDS, MARKS.
void bind_tables(pybind11::module_& module);
/// What an elastic job needs besides; before bind_options(), which takes a Cancellation.
void bind_elastic(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_gradients(pybind11::module_& module);
/// What frameworks call without Python.
void bind_faces(pybind11::module_& module);

}  // namespace hvdtune::python
