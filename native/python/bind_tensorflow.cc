#include "faces/tensorflow/c_interface.h"
#include "faces/tensorflow/operation_types.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_tensorflow(py::module_& module) {
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
}

}  // namespace hvdtune::python
