#pragma once

#include <pybind11/pybind11.h>

namespace hvdtune::python {

// One file per class or topic; each adds its names to the module.
void bind_errors(pybind11::module_& module);
void bind_backends(pybind11::module_& module);
void bind_logging(pybind11::module_& module);
void bind_options(pybind11::module_& module);
/// Names and codes of dtypes, operations, and marks that Python sets: DTYPES, OP_KINDS, MARKS.
void bind_tables(pybind11::module_& module);
/// Additional classes for elastic jobs; call it before bind_options(), which takes a Cancellation.
void bind_elastic(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_gradients(pybind11::module_& module);
/// The functions for frameworks that call the engine without Python.
void bind_faces(pybind11::module_& module);

}  // namespace hvdtune::python
