// Frequent calls, above all those for every gradient, as methods that Python calls without building
// an argument tuple. pybind11's dispatch and conversions would cost more than the engine's own
// part.
#include "python/calls/hot_calls.h"

#include <array>

#include "engine/engine.h"
#include "python/calls/hot_arguments.h"
#include "python/calls/methods.h"
#include "python/calls/running.h"
#include "python/tensors/tensors.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// prepare()'s arguments -> handle, or None.
PyObject* submit_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object engine = calls.engine();
    Described tensor;
    TensorOperation allreduce;
    if (!engine || !calls.prepare(args, count, tensor, allreduce)) Py_RETURN_NONE;
    // Keep the interpreter lock: submitting never waits for other ranks.
    const std::int64_t number = object_in<Engine>(engine.ptr()).submit(allreduce);
    py::object handle = calls.keep(engine, number, args[0]);
    if (!handle) throw py::error_already_set();
    return handle.release().ptr();
  });
}

/// Submits an operation, waits for it, and returns like collect(). Throws if it fails or a signal
/// handler throws.
py::object run_at_once(Engine& engine, const TensorOperation& wanted, PyObject* tensor,
                       PyObject* output) {
  std::int64_t handle = 0;
  {
    const py::gil_scoped_release release;
    handle = engine.submit_blocking(wanted);
  }
  try {
    return collect(engine, handle);
  } catch (const py::error_already_set&) {
    // Interrupted: the engine still works on the tensors, whose memory must be kept.
    Py_INCREF(tensor);
    Py_XINCREF(output);
    throw;
  }
}

/// prepare()'s arguments, and an output if it is not the tensor -> True if it is done, else False.
PyObject* allreduce_at_once(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object owner = calls.engine();
    PyObject* const output = count == HotCalls::kArguments + 1 ? args[--count] : nullptr;
    Described tensor;
    TensorOperation allreduce;
    if (!owner || !calls.prepare(args, count, tensor, allreduce)) Py_RETURN_FALSE;
    if (output != nullptr && !HotCalls::redirect(output, args[1], allreduce)) Py_RETURN_FALSE;
    run_at_once(object_in<Engine>(owner.ptr()), allreduce, args[0], output);
    Py_RETURN_TRUE;
  });
}

/// prepare_other()'s arguments -> the output; or (outputs, numbers) of the engine if the result
/// does not have the length that this rank expected; or None.
PyObject* exchange_at_once(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object owner = calls.engine();
    if (!owner) Py_RETURN_NONE;
    auto& engine = object_in<Engine>(owner.ptr());
    Described tensor;
    TensorOperation wanted;
    py::object output;
    if (!calls.prepare_other(engine, args, count, tensor, wanted, output)) Py_RETURN_NONE;
    py::object results = run_at_once(engine, wanted, args[1], output.ptr());
    return (results.is_none() ? output : results).release().ptr();
  });
}

/// (process set) -> True after all its ranks have arrived, or False if no engine runs.
PyObject* barrier_at_once(PyObject* self, PyObject* set) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object owner = calls.engine();
    if (!owner) Py_RETURN_FALSE;
    Submission barrier;
    barrier.request.kind = OpKind::kBarrier;
    barrier.request.name = "barrier.noname";
    barrier.request.process_set = calls.number_of(set);
    auto& engine = object_in<Engine>(owner.ptr());
    std::int64_t handle = 0;
    {
      const py::gil_scoped_release release;
      handle = engine.submit_blocking(std::move(barrier));
    }
    collect(engine, handle);
    Py_RETURN_TRUE;
  });
}

/// (handle) -> the tensor of submit_in_place, once it is reduced; None for any other handle.
PyObject* collect_in_place(PyObject* self, PyObject* handle) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    PyObject* found = PyDict_GetItemWithError(calls.pending(), handle);
    if (found == nullptr || fields_of(found).finish != Py_None) {
      PyErr_Clear();
      Py_RETURN_NONE;
    }
    const auto pending = py::reinterpret_borrow<py::object>(found);
    const std::int64_t number = PyLong_AsLongLong(handle);
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    try {
      collect(object_in<Engine>(fields_of(found).engine), number);
    } catch (const py::error_already_set&) {
      // A signal's handler has raised: the operation is still under way, works on memory that is
      // kept here, and can be waited for again.
      throw;
    } catch (...) {
      calls.forget(handle);
      throw;
    }
    // Another thread may have fetched it meanwhile.
    if (!calls.forget(handle)) Py_RETURN_NONE;
    return Py_NewRef(fields_of(found).result);
  });
}

/// (handle) -> the results of wait() and take(), None if the operation has none.
PyObject* collect_results(PyObject* self, PyObject* handle) {
  return translated([&]() -> PyObject* {
    const std::int64_t number = PyLong_AsLongLong(handle);
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return collect(object_in<Engine>(self), number).release().ptr();
  });
}

// The first line of each text is a signature, as pybind11 writes it for the other methods.
PyMethodDef collect_method = {"collect", collect_results, METH_O,
                              "collect(self: Engine, handle: int) -> object"};
std::array<PyMethodDef, 5> hot_methods = {{
    {"submit_in_place", fast(submit_in_place), METH_FASTCALL,
     "submit_in_place(self: HotCalls, tensor: object, codes: dict, average: object, name: object, "
     "op: object, prescale_factor: float, postscale_factor: float, process_set: object) -> object"},
    {"allreduce_at_once", fast(allreduce_at_once), METH_FASTCALL,
     "allreduce_at_once(self: HotCalls, tensor: object, codes: dict, average: object, name: "
     "object, op: object, prescale_factor: float, postscale_factor: float, process_set: object, "
     "output: object = None) -> bool"},
    {"exchange_at_once", fast(exchange_at_once), METH_FASTCALL,
     "exchange_at_once(self: HotCalls, kind: int, tensor: object, codes: dict, name: object, "
     "process_set: object, make_output: object, root: object = None, op: object = None, "
     "prescale_factor: float = None, postscale_factor: float = None) -> object"},
    {"barrier_at_once", barrier_at_once, METH_O,
     "barrier_at_once(self: HotCalls, process_set: object) -> bool"},
    {"collect_in_place", collect_in_place, METH_O,
     "collect_in_place(self: HotCalls, handle: int) -> object"},
}};

}  // namespace

void bind_hot_calls(py::module_& module, py::handle engine_type) {
  add_method(engine_type, collect_method);
  const py::class_<HotCalls> type(module, "HotCalls",
                                  "The calls that are made for every gradient.");
  py::class_<HotCalls>(type).def(py::init<py::object, py::dict, py::object, py::object>(),
                                 py::arg("running"), py::arg("pending"), py::arg("whole_job"),
                                 py::arg("id_of"));
  for (PyMethodDef& method : hot_methods) add_method(type, method);
}

}  // namespace hvdtune::python
