// The calls that are made for every gradient, as methods that Python calls without building an
// argument tuple. pybind11's dispatch and conversions cost more than the engine's own part.
#include "python/hot_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "engine/engine.h"
#include "python/tensors.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

template <typename Body>
PyObject* translated(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    raise(error);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// The C++ object of an instance whose type the interpreter has checked.
template <typename T>
T& object_in(PyObject* self) {
  void* object = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr();
  if (object == nullptr) throw py::type_error("__init__ was not called");
  return *static_cast<T*>(object);
}

/// What Python has to give for the calls that go past its layers: see _native.pyi.
class HotCalls {
 public:
  static constexpr Py_ssize_t kArguments = 8;  // of prepare()

  HotCalls(py::dict world, py::dict pending, py::object whole_job, py::object id_of)
      : world_(std::move(world)),
        pending_(std::move(pending)),
        whole_job_(std::move(whole_job)),
        id_of_(std::move(id_of)) {}

  /// The running engine, or null.
  [[nodiscard]] py::object engine() const {
    static PyObject* const name = PyUnicode_InternFromString("_engine");
    static PyTypeObject* const type =
        reinterpret_cast<PyTypeObject*>(py::type::of<Engine>().release().ptr());
    PyObject* found = PyDict_GetItemWithError(world_.ptr(), name);
    if (found == nullptr || Py_TYPE(found) != type) return {};
    return py::reinterpret_borrow<py::object>(found);
  }

  /// (tensor, codes, average, name, operator, prescale, postscale, process set): fills in an
  /// allreduce in place, which refers to `tensor`. False when it is not one that can be handed over
  /// as it is: the slow path knows what to do or say.
  bool prepare(PyObject* const* args, Py_ssize_t count, Described& tensor, TensorAllreduce& out) {
    if (count != kArguments) throw py::type_error("an allreduce takes 8 arguments");
    // The name last: it lies in a string that a call within this one, from Python code that the
    // others may run, would overwrite.
    return args[2] == Py_None && prepare_operator(args[4], out) &&
           prepare_factors(args[5], args[6], out) && prepare_set(args[7], out) &&
           prepare_tensor(args, tensor, out) && prepare_name(args[3], out);
  }

  /// Sends the result of what prepare() filled in to `output` instead. False when that is not dense
  /// memory of the same type and shape.
  static bool redirect(PyObject* output, PyObject* codes, TensorAllreduce& allreduce) {
    Described described;
    if (!describe(output, codes, described) || described.dtype != allreduce.dtype) return false;
    const std::span<const std::int64_t> shape(described.shape.data(), described.dims);
    if (!std::ranges::equal(shape, allreduce.shape)) return false;
    allreduce.memory.out = described.memory;
    return true;
  }

  /// Lets Python's side wait for a handle later, and keeps the tensor until then. Null, with a
  /// Python error set, when there is no memory for that; the tensor is then kept for good.
  [[nodiscard]] py::object keep(const py::object& engine, std::int64_t number,
                                PyObject* tensor) const {
    auto handle = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
    const auto pending =
        py::reinterpret_steal<py::object>(PyTuple_Pack(4, engine.ptr(), Py_None, Py_None, tensor));
    if (handle && pending && PyDict_SetItem(pending_.ptr(), handle.ptr(), pending.ptr()) == 0) {
      return handle;
    }
    Py_INCREF(tensor);  // the engine works on its memory
    return {};
  }

  [[nodiscard]] PyObject* pending() const { return pending_.ptr(); }

  /// False when nobody has it, or another thread was quicker.
  bool forget(PyObject* handle) const {
    if (PyDict_DelItem(pending_.ptr(), handle) == 0) return true;
    PyErr_Clear();
    return false;
  }

 private:
  static bool prepare_name(PyObject* name, TensorAllreduce& out) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    thread_local std::string whole;  // until the thread's next call
    whole.assign("allreduce.").append(text, static_cast<std::size_t>(length));
    out.name = whole;
    return true;
  }

  static bool prepare_operator(PyObject* op, TensorAllreduce& out) {
    if (op == Py_None) {
      out.reduce_op = ReduceOp::kAverage;
      return true;
    }
    if (!PyLong_CheckExact(op)) return false;
    const long code = PyLong_AsLong(op);
    PyErr_Clear();
    out.reduce_op = static_cast<ReduceOp>(code);
    return code >= 0 && code <= static_cast<long>(ReduceOp::kProduct) &&
           out.reduce_op != ReduceOp::kAdasum;
  }

  static bool prepare_factors(PyObject* prescale, PyObject* postscale, TensorAllreduce& out) {
    out.prescale = PyFloat_AsDouble(prescale);
    out.postscale = PyFloat_AsDouble(postscale);
    if (PyErr_Occurred() != nullptr) {  // not a number
      PyErr_Clear();
      return false;
    }
    return !std::isnan(out.prescale) && !std::isnan(out.postscale);
  }

  static bool prepare_tensor(PyObject* const* args, Described& tensor, TensorAllreduce& out) {
    if (!describe(args[0], args[1], tensor)) return false;
    out.dtype = tensor.dtype;
    out.shape = {tensor.shape.data(), tensor.dims};
    out.memory = {tensor.memory, tensor.memory};
    const bool scales =
        out.reduce_op == ReduceOp::kAverage || out.prescale != 1.0 || out.postscale != 1.0;
    return !scales || out.dtype != DType::kBool;
  }

  bool prepare_set(PyObject* set, TensorAllreduce& out) const {
    if (set == whole_job_.ptr()) return true;
    const auto id = py::reinterpret_steal<py::object>(PyObject_CallOneArg(id_of_.ptr(), set));
    if (!id) throw py::error_already_set();
    out.process_set = static_cast<std::uint32_t>(PyLong_AsLong(id.ptr()));
    return true;
  }

  py::dict world_;
  py::dict pending_;
  py::object whole_job_;
  py::object id_of_;
};

/// prepare()'s arguments -> handle, or None.
PyObject* submit_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object engine = calls.engine();
    Described tensor;
    TensorAllreduce allreduce;
    if (!engine || !calls.prepare(args, count, tensor, allreduce)) Py_RETURN_NONE;
    // The interpreter lock stays: submitting never waits for anybody.
    const std::int64_t number = object_in<Engine>(engine.ptr()).submit(allreduce);
    py::object handle = calls.keep(engine, number, args[0]);
    if (!handle) throw py::error_already_set();
    return handle.release().ptr();
  });
}

/// The work of allreduce_all().
class Together {
 public:
  Together(HotCalls& calls, py::object engine, const py::list& tensors)
      : calls_(calls), owner_(std::move(engine)), tensors_(tensors) {
    handles_.reserve(tensors_.size());
  }

  /// `rest`: operator, prescale, postscale, process set. Throws at the first tensor that is
  /// refused; those before it are under way.
  void submit(PyObject* codes, const py::tuple& names, PyObject* const* rest) {
    Engine::HeldRings held(engine());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::array<PyObject*, 8> args = {
          tensor(i), codes,   Py_None, PyTuple_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i)),
          rest[0],   rest[1], rest[2], rest[3]};
      Described described;
      TensorAllreduce allreduce;
      const bool fits = calls_.prepare(args.data(), args.size(), described, allreduce);
      handles_.push_back(fits ? engine().submit(allreduce) : kNotSubmitted);
    }
    held.then_waits();
  }

  /// Throws when it is interrupted.
  void wait() {
    // The last one first: a blocked wait makes the coordinator close its batch.
    for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {
      if (*handle == kNotSubmitted) continue;
      if (!engine().is_done(*handle)) python::wait(engine(), *handle);
      if (engine().retire(*handle)) *handle = kReduced;  // what failed stays
    }
  }

  /// Appends to a list what has become of each so far; false unless all are reduced.
  bool report(py::list outcomes) const {
    bool all = handles_.size() == tensors_.size();
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i] == kReduced) {
        outcomes.append(py::none());
        continue;
      }
      all = false;
      if (handles_[i] == kNotSubmitted) {
        outcomes.append(py::bool_(false));
      } else {
        outcomes.append(calls_.keep(owner_, handles_[i], tensor(i)));
      }
    }
    return all;
  }

 private:
  static constexpr std::int64_t kNotSubmitted = -1;  // the engine counts from 1
  static constexpr std::int64_t kReduced = 0;

  [[nodiscard]] Engine& engine() const { return object_in<Engine>(owner_.ptr()); }
  [[nodiscard]] PyObject* tensor(std::size_t i) const {
    return PyTuple_GET_ITEM(tensors_.ptr(), static_cast<Py_ssize_t>(i));
  }

  HotCalls& calls_;
  py::object owner_;
  py::tuple tensors_;  // a copy: the list may change while this waits
  std::vector<std::int64_t> handles_;
};

/// (tensors, codes, names, operator, prescale, postscale, process set, outcomes) -> whether all are
/// reduced.
PyObject* allreduce_all(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    if (count != 8 || !PyList_Check(args[0]) || !PyTuple_Check(args[2]) || !PyList_Check(args[7]) ||
        PyList_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[2])) {
      throw py::type_error("allreduce_all takes a list of tensors and a tuple of their names");
    }
    auto& calls = object_in<HotCalls>(self);
    py::object engine = calls.engine();
    auto outcomes = py::reinterpret_borrow<py::list>(args[7]);
    if (!engine) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); ++i) outcomes.append(py::bool_(false));
      Py_RETURN_FALSE;
    }
    Together together(calls, std::move(engine), py::reinterpret_borrow<py::list>(args[0]));
    try {
      together.submit(args[1], py::reinterpret_borrow<py::tuple>(args[2]), args + 3);
      together.wait();
    } catch (...) {
      together.report(outcomes);
      throw;
    }
    return PyBool_FromLong(together.report(outcomes) ? 1 : 0);
  });
}

/// prepare()'s arguments, and where the result goes if not into the tensor -> True when it is done,
/// or False.
PyObject* allreduce_at_once(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    const py::object owner = calls.engine();
    PyObject* const output = count == HotCalls::kArguments + 1 ? args[--count] : nullptr;
    Described tensor;
    TensorAllreduce allreduce;
    if (!owner || !calls.prepare(args, count, tensor, allreduce)) Py_RETURN_FALSE;
    if (output != nullptr && !HotCalls::redirect(output, args[1], allreduce)) Py_RETURN_FALSE;
    auto& engine = object_in<Engine>(owner.ptr());
    std::int64_t handle = 0;
    {
      const py::gil_scoped_release release;
      handle = engine.submit_blocking(allreduce);
    }
    try {
      collect(engine, handle);
    } catch (const py::error_already_set&) {
      // Interrupted: the engine goes on working on the tensors, whose memory must stay.
      Py_INCREF(args[0]);
      Py_XINCREF(output);
      throw;
    }
    Py_RETURN_TRUE;
  });
}

/// (handle) -> the tensor of submit_in_place, once it is reduced; None for any other handle.
PyObject* collect_in_place(PyObject* self, PyObject* handle) {
  return translated([&]() -> PyObject* {
    auto& calls = object_in<HotCalls>(self);
    PyObject* found = PyDict_GetItemWithError(calls.pending(), handle);
    if (found == nullptr || PyTuple_GET_ITEM(found, 2) != Py_None) {
      PyErr_Clear();
      Py_RETURN_NONE;
    }
    const auto pending = py::reinterpret_borrow<py::object>(found);
    const std::int64_t number = PyLong_AsLongLong(handle);
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    try {
      collect(object_in<Engine>(PyTuple_GET_ITEM(found, 0)), number);
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
    return Py_NewRef(PyTuple_GET_ITEM(found, 3));
  });
}

/// (handle) -> what wait() and take() give, None when the operation brought nothing.
PyObject* collect_results(PyObject* self, PyObject* handle) {
  return translated([&]() -> PyObject* {
    const std::int64_t number = PyLong_AsLongLong(handle);
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return collect(object_in<Engine>(self), number).release().ptr();
  });
}

template <typename Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// The first line of each text is a signature, as pybind11 writes it for the other methods.
PyMethodDef collect_method = {"collect", collect_results, METH_O,
                              "collect(self: Engine, handle: int) -> object"};
std::array<PyMethodDef, 4> hot_methods = {{
    {"submit_in_place", fast(submit_in_place), METH_FASTCALL,
     "submit_in_place(self: HotCalls, tensor: object, codes: dict, average: object, name: object, "
     "op: object, prescale_factor: float, postscale_factor: float, process_set: object) -> object"},
    {"allreduce_at_once", fast(allreduce_at_once), METH_FASTCALL,
     "allreduce_at_once(self: HotCalls, tensor: object, codes: dict, average: object, name: "
     "object, op: object, prescale_factor: float, postscale_factor: float, process_set: object, "
     "output: object = None) -> bool"},
    {"allreduce_all", fast(allreduce_all), METH_FASTCALL,
     "allreduce_all(self: HotCalls, tensors: list, codes: dict, names: tuple, op: object, "
     "prescale_factor: float, postscale_factor: float, process_set: object, outcomes: list) "
     "-> bool"},
    {"collect_in_place", collect_in_place, METH_O,
     "collect_in_place(self: HotCalls, handle: int) -> object"},
}};

void add_method(py::handle type, PyMethodDef& method) {
  const auto descriptor = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
  if (!descriptor) throw py::error_already_set();
  py::setattr(type, method.ml_name, descriptor);
}

}  // namespace

void bind_hot_calls(py::module_& module, py::handle engine_type) {
  add_method(engine_type, collect_method);
  const py::class_<HotCalls> type(module, "HotCalls",
                                  "The calls that are made for every gradient.");
  py::class_<HotCalls>(type).def(py::init<py::dict, py::dict, py::object, py::object>(),
                                 py::arg("world"), py::arg("pending"), py::arg("whole_job"),
                                 py::arg("id_of"));
  for (PyMethodDef& method : hot_methods) add_method(type, method);
}

}  // namespace hvdtune::python
