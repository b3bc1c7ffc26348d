#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "faces/mxnet/push.h"
#include "faces/step_ends.h"
#include "faces/tensorflow/c_interface.h"
#include "faces/tensorflow/operation_types.h"
#include "faces/xla/collective_call.h"
#include "faces/xla/untyped_call.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// NDArrays, by the numbers of their handles.
using Handles = std::vector<std::uintptr_t>;

std::vector<void*> pointers(const Handles& handles) {
  std::vector<void*> found;
  found.reserve(handles.size());
  for (const std::uintptr_t handle : handles) found.push_back(reinterpret_cast<void*>(handle));
  return found;
}

void push_mxnet(int kind, std::string name, const Handles& inputs, const Handles& outputs, int op,
                double prescale, double postscale, std::int32_t root, std::uint32_t process_set,
                bool grouped, bool cacheable, const Handles& tied, int priority) {
  wire::Request request;
  request.kind = static_cast<OpKind>(kind);
  request.reduce_op = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.root = root;
  request.process_set = process_set;
  request.grouped = grouped;
  request.cacheable = cacheable;
  request.name = std::move(name);
  const std::vector<void*> read = pointers(inputs);
  const std::vector<void*> written = pointers(outputs);
  const std::vector<void*> ties = pointers(tied);
  const py::gil_scoped_release no_gil;  // if MXNet computes at once, it may call Python
  faces::mxnet::push(std::move(request), read, written, ties, priority);
}

}  // namespace

void bind_faces(py::module_& module) {
  module.def("steps_ended", &faces::steps_ended,
             "Number of ended steps of this process that a graph has reported and that count.");
  module.def("leave_steps_to_program", &faces::leave_steps_to_program,
             "From now on the program reports its steps itself, and graphs do not.");
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
      "is at this path. Once. If the library lacks functions, raises ValueError with their names, "
      "and registers nothing.");
  module.def("register_tensorflow_xla", &faces::xla::register_untyped_calls, py::arg("library"),
             "Registers custom calls for the CPU with the XLA in TensorFlow's library, loaded "
             "already, at this path. Once. If the library lacks functions, raises ValueError with "
             "their names, and registers nothing.");
  module.def(
      "find_mxnet",
      [](std::uintptr_t library) {
        faces::mxnet::find_c_interface(reinterpret_cast<void*>(library));
      },
      py::arg("library"),
      "Finds MXNet's functions in its library, given by dlopen()'s handle. Raises ValueError with "
      "the names of those that it lacks. Before the first push_mxnet().");
  module.def(
      "push_mxnet", &push_mxnet, py::arg("kind"), py::arg("name"), py::arg("inputs"),
      py::arg("outputs"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("root"),
      py::arg("process_set"), py::arg("grouped"), py::arg("cacheable"), py::arg("tied"),
      py::arg("priority"),
      "Pushes an operation from NDArrays into as many, given by their handles, to MXNet's "
      "engine. Returns at once, or after a short wait for the other ranks if nothing else is in "
      "flight. `tied`: further NDArrays that order operations with this name. Raises "
      "ValueError or HorovodInternalError if the operation is refused at once; later "
      "errors are raised by MXNet when an output is read.");
  module.def(
      "push_mxnet_step_mark",
      [](const Handles& arrays) {
        const std::vector<void*> read = pointers(arrays);
        const py::gil_scoped_release no_gil;
        faces::mxnet::push_step_mark(read);
      },
      py::arg("arrays"),
      "A training step ends when MXNet has computed these NDArrays, given by their handles.");
}

}  // namespace hvdtune::python
