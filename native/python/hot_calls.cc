// The calls that are made often, above all for every gradient, as methods that Python calls without
// building an argument tuple. pybind11's dispatch and conversions cost more than the engine's own
// part.
#include "python/hot_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "engine/results.h"
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
  static constexpr Py_ssize_t kFewest = 6;     // of prepare_other()
  static constexpr Py_ssize_t kMost = 10;

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
  bool prepare(PyObject* const* args, Py_ssize_t count, Described& tensor, TensorOperation& out) {
    if (count != kArguments) throw py::type_error("an allreduce takes 8 arguments");
    // The name last: it lies in a string that a call within this one, from Python code that the
    // others may run, would overwrite.
    return args[2] == Py_None && prepare_operator(args[4], out) &&
           prepare_factors(args[5], args[6], out) && prepare_set(args[7], out) &&
           prepare_tensor(args[0], args[1], tensor, out) && prepare_name(args[3], out);
  }

  /// The same for the other operations, of (kind, tensor, codes, name, process set, maker of the
  /// output, root, operator, prescale, postscale), of which the last four are optional. `output`
  /// gets what the maker returns, or the tensor itself where there is no maker.
  bool prepare_other(Engine& engine, PyObject* const* args, Py_ssize_t count, Described& tensor,
                     TensorOperation& out, py::object& output) {
    if (count < kFewest || count > kMost) {
      throw py::type_error("exchange_at_once takes 6 to 10 arguments");
    }
    const long kind = PyLong_AsLong(args[0]);
    if (kind < static_cast<long>(OpKind::kAllgather) ||
        kind > static_cast<long>(OpKind::kReducescatter)) {
      throw py::type_error("no such operation");
    }
    out.kind = static_cast<OpKind>(kind);
    if (count > kFewest && !prepare_root(args[6], out)) return false;
    if (count == kMost && !(prepare_operator(args[7], out) && is_sum(out.reduce_op) &&
                            prepare_factors(args[8], args[9], out))) {
      return false;
    }
    return prepare_set(args[4], out) && prepare_tensor(args[1], args[2], tensor, out) &&
           prepare_output(engine, args, tensor, out, output) && prepare_name(args[3], out);
  }

  /// Sends the result of what prepare() filled in to `output` instead. False when that is not dense
  /// memory of the same type and shape.
  static bool redirect(PyObject* output, PyObject* codes, TensorOperation& allreduce) {
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

  /// Of a process set. Throws Python's error for what is none.
  [[nodiscard]] std::uint32_t number_of(PyObject* set) const {
    if (set == whole_job_.ptr()) return 0;
    const auto id = py::reinterpret_steal<py::object>(PyObject_CallOneArg(id_of_.ptr(), set));
    if (!id) throw py::error_already_set();
    return static_cast<std::uint32_t>(PyLong_AsLong(id.ptr()));
  }

  [[nodiscard]] PyObject* pending() const { return pending_.ptr(); }

  /// False when nobody has it, or another thread was quicker.
  bool forget(PyObject* handle) const {
    if (PyDict_DelItem(pending_.ptr(), handle) == 0) return true;
    PyErr_Clear();
    return false;
  }

 private:
  static bool prepare_name(PyObject* name, TensorOperation& out) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    thread_local std::string whole;  // until the thread's next call
    // As in core/operations.py.
    static constexpr std::array<const char*, 5> kPrefixes = {
        "allreduce.", "allgather.", "broadcast.", "alltoall.", "reducescatter."};
    whole.assign(kPrefixes[static_cast<std::size_t>(out.kind)])
        .append(text, static_cast<std::size_t>(length));
    out.name = whole;
    return true;
  }

  static bool prepare_operator(PyObject* op, TensorOperation& out) {
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

  static bool prepare_factors(PyObject* prescale, PyObject* postscale, TensorOperation& out) {
    out.prescale = PyFloat_AsDouble(prescale);
    out.postscale = PyFloat_AsDouble(postscale);
    if (PyErr_Occurred() != nullptr) {  // not a number
      PyErr_Clear();
      return false;
    }
    return !std::isnan(out.prescale) && !std::isnan(out.postscale);
  }

  static bool is_sum(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

  static bool prepare_root(PyObject* root, TensorOperation& out) {
    if (!PyLong_CheckExact(root)) return false;
    int overflow = 0;
    const long rank = PyLong_AsLongAndOverflow(root, &overflow);
    out.root = static_cast<std::int32_t>(rank);
    return overflow == 0 && out.root == rank;
  }

  /// Rows of the result when all members bring as many as this one; -1 where it has the tensor's
  /// shape, or nothing when the slow path has the words for what is wrong, or a better place.
  static std::optional<std::int64_t> rows_of_result(Engine& engine, const TensorOperation& wanted) {
    if (wanted.kind == OpKind::kBroadcast) return -1;
    const auto [index, members] = engine.place_in_set(wanted.process_set);
    if (wanted.shape.empty() || index < 0) return std::nullopt;
    std::int64_t rows = wanted.shape[0];
    if (wanted.kind == OpKind::kReducescatter) {
      rows = scattered_rows(rows, index, members);
      return rows == 0 ? std::nullopt : std::optional(rows);  // no memory to speak of
    }
    if (wanted.kind == OpKind::kAlltoall && rows % members != 0) return std::nullopt;
    if (wanted.kind == OpKind::kAllgather) rows *= members;
    auto bytes = static_cast<std::int64_t>(dtype_size(wanted.dtype));
    for (const std::int64_t dim : wanted.shape.subspan(1)) bytes *= dim;
    // The result may turn out to be longer, and this in vain: that must cost little.
    const bool large = rows * bytes >= static_cast<std::int64_t>(kLeastLargeBlock);
    return large ? std::nullopt : std::optional(rows);
  }

  static bool prepare_output(Engine& engine, PyObject* const* args, const Described& tensor,
                             TensorOperation& out, py::object& output) {
    const std::optional<std::int64_t> rows = rows_of_result(engine, out);
    if (!rows) return false;
    if (args[5] == Py_None) {
      output = py::reinterpret_borrow<py::object>(args[1]);
      return true;  // in place
    }
    const auto wanted = *rows < 0 ? py::none() : py::object(py::int_(*rows));
    output = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(args[5], args[1], wanted.ptr(), nullptr));
    if (!output) throw py::error_already_set();
    Described made;
    if (!describe(output.ptr(), args[2], made) || made.dtype != tensor.dtype) return false;
    std::array<std::int64_t, Described::kMostDims> shape = tensor.shape;
    if (*rows >= 0) shape[0] = *rows;
    if (!std::ranges::equal(std::span(made.shape.data(), made.dims),
                            std::span(shape.data(), tensor.dims))) {
      return false;
    }
    out.memory.out = made.memory;
    return true;
  }

  static bool prepare_tensor(PyObject* object, PyObject* codes, Described& tensor,
                             TensorOperation& out) {
    if (!describe(object, codes, tensor)) return false;
    out.dtype = tensor.dtype;
    out.shape = {tensor.shape.data(), tensor.dims};
    out.memory = {tensor.memory, tensor.memory};
    const bool scales =
        out.reduce_op == ReduceOp::kAverage || out.prescale != 1.0 || out.postscale != 1.0;
    return !scales || out.dtype != DType::kBool;
  }

  bool prepare_set(PyObject* set, TensorOperation& out) const {
    out.process_set = number_of(set);
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
    TensorOperation allreduce;
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
      TensorOperation allreduce;
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

/// Submits an operation and waits for it; what collect() gives. Throws when it fails or a signal's
/// handler does.
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
    // Interrupted: the engine goes on working on the tensors, whose memory must stay.
    Py_INCREF(tensor);
    Py_XINCREF(output);
    throw;
  }
}

/// prepare()'s arguments, and where the result goes if not into the tensor -> True when it is done,
/// or False.
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

/// prepare_other()'s arguments -> the output; or (outputs, numbers) of the engine when the result
/// is not as long as this rank expected; or None.
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

/// (process set) -> True when all its ranks have come, or False when no engine runs.
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
std::array<PyMethodDef, 6> hot_methods = {{
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
    {"exchange_at_once", fast(exchange_at_once), METH_FASTCALL,
     "exchange_at_once(self: HotCalls, kind: int, tensor: object, codes: dict, name: object, "
     "process_set: object, make_output: object, root: object = None, op: object = None, "
     "prescale_factor: float = None, postscale_factor: float = None) -> object"},
    {"barrier_at_once", barrier_at_once, METH_O,
     "barrier_at_once(self: HotCalls, process_set: object) -> bool"},
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
