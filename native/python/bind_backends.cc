#include "python/bindings.h"
#include "transport/messengers/mpi.h"

namespace py = pybind11;

namespace hvdtune::python {

void bind_backends(py::module_& module) {
  module.def("finish_mpi", &Mpi::finish, py::arg("finalizes"), py::arg("hydra"),
             py::call_guard<py::gil_scoped_release>(),
             "Ends the engine's calls to MPI; then calls MPI_Finalize if requested, if an engine "
             "of this process has initialised MPI, and if no job was aborted. May wait for the "
             "other processes. hydra: the descriptor of this process's connection to "
             "MPICH's mpirun; -1: none.");
  module.def(
      "mpi_threads_multiple",
      [] {
        const Mpi* const mpi = Mpi::current();
        return mpi != nullptr && mpi->threads_multiple();
      },
      "Whether the MPI of this process allows calls from several threads at the same time; false "
      "if no engine uses MPI.");
}

}  // namespace hvdtune::python
