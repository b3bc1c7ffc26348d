#include "faces/tensorflow/c_interface.h"
#include "faces/tensorflow/operation_types.h"
#include "faces/xla/collective_call.h"
#include "faces/xla/untyped_call.h"
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
  module.def(
      "register_tensorflow",
      [](const std::string& library) {
        faces::tensorflow::find_c_interface(library);
        faces::tensorflow::define_operation_types();
        faces::tensorflow::register_kernels();
      },
      py::arg("library"),
      "Registers Horovod's operations with the TensorFlow whose framework library, loaded already, "
      "is at this path. Once. Raises ValueError, and registers nothing, with the names of the "
      "functions that the library lacks.");
  module.def("register_tensorflow_xla", &faces::xla::register_untyped_calls, py::arg("library"),
             "Registers custom calls for the CPU with the XLA in TensorFlow's library, loaded "
             "already, at this path. Once. Raises ValueError, and registers nothing, with what the "
             "library lacks.");
}

}  // namespace hvdtune::python
