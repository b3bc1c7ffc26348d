#include "base/error.h"
#include "python/bindings.h"
#include "python/calls/hot_calls.h"

namespace py = pybind11;

namespace hvdtune::python {

/// Errors of arguments become ValueError; errors of the job become Horovod's own exception, as
/// scripts expect.
void raise(const Error& error) {
  if (error.kind() == ErrorKind::kInvalidArgument) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return;
  }
  const py::object type =
      py::module_::import("hvdtune.core.exceptions").attr("HorovodInternalError");
  PyErr_SetString(type.ptr(), error.what());
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
