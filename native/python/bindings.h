#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace hvdtune::python {

/// A path of Python's as the system has it: bytes that are no text are lone surrogates in Python.
inline std::string system_path(pybind11::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::bytes>(bytes);
}

/// Text as UTF-8; what is no text, as in paths, is escaped.
inline std::string utf8_text(pybind11::handle text) {
  const auto bytes = pybind11::reinterpret_steal<pybind11::bytes>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw pybind11::error_already_set();
  return bytes;
}

/// A path as Python has it: the opposite of system_path().
inline pybind11::str python_path(const std::string& path) {
  auto text = pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  if (!text) throw pybind11::error_already_set();
  return text;
}

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
