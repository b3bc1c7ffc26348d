#include <string_view>

#include "base/error.h"
#include "python/bindings.h"
#include "python/calls/hot_calls.h"

namespace py = pybind11;

namespace hvdtune::python {

/// Errors of arguments become ValueError; errors of the job become Horovod's own exception, as
/// scripts expect.
void raise(const Error& error) {
  const std::string_view what = error.what();
  // A part of it, such as the name of a file, may not be UTF-8.
  const auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
  if (!text) return;  // Python has no memory, and has said so
  if (error.kind() == ErrorKind::kInvalidArgument) {
    PyErr_SetObject(PyExc_ValueError, text.ptr());
    return;
  }
  const py::object type =
      py::module_::import("hvdtune.core.exceptions").attr("HorovodInternalError");
  PyErr_SetObject(type.ptr(), text.ptr());
}

void bind_errors(py::module_& /*module*/) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace hvdtune::python
