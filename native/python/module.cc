#include "python/bindings.h"
#include "python/calls/allreduce_plan.h"
#include "python/calls/running.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "hvdtune's communication engine. Use it through hvdtune.core.";
  hvdtune::python::bind_errors(module);
  hvdtune::python::bind_logging(module);
  hvdtune::python::bind_backends(module);
  hvdtune::python::bind_elastic(module);
  hvdtune::python::bind_options(module);
  hvdtune::python::bind_tables(module);
  hvdtune::python::bind_running(module);
  hvdtune::python::bind_engine(module);
  hvdtune::python::bind_allreduce_plan(module);
  hvdtune::python::bind_gradients(module);
  hvdtune::python::bind_faces(module);
}
