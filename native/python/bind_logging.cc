#include "base/cpu/cpu.h"
#include "base/log.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_logging(py::module_& module) {
  module.def(
      "configure_logging",
      [](const std::string& level, bool hide_time) {
        LogOptions options;
        options.level = parse_log_level(level).value_or(LogLevel::kWarning);
        options.hide_time = hide_time;
        Logger::configure(options);
      },
      py::arg("level"), py::arg("hide_time"));
  module.def(
      "log",
      [](const std::string& level, const std::string& file, int line, int rank,
         const py::str& message) {
        const LogLevel severity = parse_log_level(level).value_or(LogLevel::kInfo);
        if (!Logger::enabled(severity)) return;
        Logger::write(severity, file, line, rank, utf8_text(message));
      },
      py::arg("level"), py::arg("file"), py::arg("line"), py::arg("rank"), py::arg("message"));
  module.def("usable_cpus", &usable_cpus);
}

}  // namespace hvdtune::python
