// What an elastic job's processes need besides the engine: an end for a meeting that will not come
// about, and signs of life for the driver.
#include <memory>
#include <string>

#include "python/bindings.h"
#include "transport/control/beats.h"
#include "transport/meeting/cancellation.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_elastic(py::module_& module) {
  py::class_<Cancellation, std::shared_ptr<Cancellation>>(module, "Cancellation")
      .def(py::init())
      .def("cancel", &Cancellation::cancel, py::arg("why"));
  py::class_<Beats>(module, "Beats")
      .def(py::init([](int socket, const py::bytes& line, double seconds) {
             return std::make_unique<Beats>(socket, std::string(line),
                                            static_cast<Nanos>(seconds * double{kSecond}));
           }),
           py::arg("socket"), py::arg("line"), py::arg("seconds"))
      .def("stop", &Beats::stop, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hvdtune::python
