// Additional classes for the processes of elastic jobs: to end a meeting that cannot succeed, and
// to send signs of life to the driver.
#include <memory>
#include <string>
#include <vector>

#include "python/bindings.h"
#include "transport/control/beats.h"
#include "transport/meeting/cancellation.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_elastic(py::module_& module) {
  py::class_<Cancellation, std::shared_ptr<Cancellation>>(module, "Cancellation")
      .def(py::init())
      .def("cancel", &Cancellation::cancel, py::arg("why"));
  py::class_<Beats, std::shared_ptr<Beats>>(module, "Beats")
      .def(py::init([](int socket, const py::bytes& line, double seconds) {
             return std::make_shared<Beats>(socket, std::string(line),
                                            static_cast<Nanos>(seconds * double{kSecond}));
           }),
           py::arg("socket"), py::arg("line"), py::arg("seconds"))
      .def("keep",
           [](const std::shared_ptr<Beats>& beats) {
             // Not destroyed when the process ends.
             static auto* const kept = new std::vector<std::shared_ptr<Beats>>;
             kept->push_back(beats);
           })
      .def("stop", &Beats::stop, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hvdtune::python
