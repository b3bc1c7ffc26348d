// Helpers for classes whose methods Python calls without building an argument tuple.
#pragma once

#include <pybind11/pybind11.h>

#include "base/error.h"
#include "python/calls/hot_calls.h"

namespace hvdtune::python {

/// Runs `body`; null with Python's error set if it throws.
template <typename Body>
PyObject* translated(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    raise(error);
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// The C++ object of an instance whose type the interpreter has checked.
template <typename T>
T& object_in(PyObject* self) {
  void* object =
      reinterpret_cast<pybind11::detail::instance*>(self)->get_value_and_holder().value_ptr();
  if (object == nullptr) throw pybind11::type_error("__init__ was not called");
  return *static_cast<T*>(object);
}

/// A METH_FASTCALL function with the type that a method table requires.
template <typename Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

/// `method` must exist as long as the type.
inline void add_method(pybind11::handle type, PyMethodDef& method) {
  const auto descriptor = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
  if (!descriptor) throw pybind11::error_already_set();
  pybind11::setattr(type, method.ml_name, descriptor);
}

}  // namespace hvdtune::python
