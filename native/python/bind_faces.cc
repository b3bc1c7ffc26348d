#include "faces/xla/collective_call.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_faces(py::module_& module) {
  module.def(
      "xla_collective_call",
      [] {
        return py::capsule(reinterpret_cast<const void*>(&faces::xla::call_collective),
                           "xla._CUSTOM_CALL_TARGET");
      },
      "A capsule with the handler of XLA's custom call for all collectives on the CPU.");
}

}  // namespace hvdtune::python
