// State that the calls for every gradient share with `hvdtune.core`: the running engine, and the
// data of an operation until its result is fetched.
#pragma once

#include <pybind11/pybind11.h>

namespace hvdtune::python {

/// Adds the classes Running and Pending.
void bind_running(pybind11::module_& module);

/// The engine of an instance of Running, or null if no job runs. `running` must be one. Needs the
/// interpreter's lock.
[[nodiscard]] pybind11::object engine_of(pybind11::handle running);

/// Whether `object` is an instance of Running.
[[nodiscard]] bool is_running_object(pybind11::handle object);

/// A Pending of an operation in place on `tensor`, which is the result; it has no finishing
/// function. Null with Python's error set if there is no memory for it.
[[nodiscard]] pybind11::object pending_in_place(pybind11::handle engine, pybind11::handle tensor);

/// The fields of a Pending, borrowed.
struct PendingFields {
  PyObject* engine;
  PyObject* finish;
  PyObject* result;
};

/// `pending` must be a Pending.
[[nodiscard]] PendingFields fields_of(PyObject* pending);

}  // namespace hvdtune::python
