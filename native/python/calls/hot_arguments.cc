#include "python/calls/hot_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "engine/operation/results.h"
#include "python/calls/running.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// "allreduce.", …: core/operations.py begins the names of the slower calls in the same way.
const std::string& prefix_of(OpKind kind) {
  static const auto kPrefixes = [] {
    std::array<std::string, kOpKindCount> prefixes;
    for (int number = 0; number < kOpKindCount; ++number) {
      prefixes[static_cast<std::size_t>(number)] =
          op_kind_lower_name(static_cast<OpKind>(number)) + ".";
    }
    return prefixes;
  }();
  return kPrefixes[static_cast<std::size_t>(kind)];
}

bool prepare_name(PyObject* name, TensorOperation& out) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  thread_local std::string whole;  // until the thread's next call
  whole.assign(prefix_of(out.kind)).append(text, static_cast<std::size_t>(length));
  out.name = whole;
  return true;
}

bool prepare_operator(PyObject* op, TensorOperation& out) {
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

bool prepare_factors(PyObject* prescale, PyObject* postscale, TensorOperation& out) {
  out.prescale = PyFloat_AsDouble(prescale);
  out.postscale = PyFloat_AsDouble(postscale);
  if (PyErr_Occurred() != nullptr) {  // not a number
    PyErr_Clear();
    return false;
  }
  return !std::isnan(out.prescale) && !std::isnan(out.postscale);
}

bool is_sum(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

bool prepare_root(PyObject* root, TensorOperation& out) {
  if (!PyLong_CheckExact(root)) return false;
  int overflow = 0;
  const long rank = PyLong_AsLongAndOverflow(root, &overflow);
  out.root = static_cast<std::int32_t>(rank);
  return overflow == 0 && out.root == rank;
}

/// Rows of the result if all members have as many as this one; -1 if it has the tensor's shape.
/// Nothing if the slow path must report an error, or handles the case better.
std::optional<std::int64_t> rows_of_result(Engine& engine, const TensorOperation& wanted) {
  if (wanted.kind == OpKind::kBroadcast) return -1;
  const auto [index, members] = engine.place_in_set(wanted.process_set);
  if (wanted.shape.empty() || index < 0) return std::nullopt;
  std::int64_t rows = wanted.shape[0];
  if (wanted.kind == OpKind::kReducescatter) {
    rows = scattered_rows(rows, index, members);
    return rows == 0 ? std::nullopt : std::optional(rows);  // no memory to provide
  }
  if (wanted.kind == OpKind::kAlltoall && rows % members != 0) return std::nullopt;
  if (wanted.kind == OpKind::kAllgather) rows *= members;
  auto bytes = static_cast<std::int64_t>(dtype_size(wanted.dtype));
  for (const std::int64_t dim : wanted.shape.subspan(1)) bytes *= dim;
  // The result may turn out to be longer, so that this memory is not used: it must be cheap.
  const bool large = rows * bytes >= static_cast<std::int64_t>(kLeastLargeBlock);
  return large ? std::nullopt : std::optional(rows);
}

bool prepare_output(Engine& engine, PyObject* const* args, const Described& tensor,
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

bool prepare_tensor(PyObject* object, PyObject* codes, Described& tensor, TensorOperation& out) {
  if (!describe(object, codes, tensor)) return false;
  out.dtype = tensor.dtype;
  out.shape = {tensor.shape.data(), tensor.dims};
  out.memory = {tensor.memory, tensor.memory};
  const bool scales =
      out.reduce_op == ReduceOp::kAverage || out.prescale != 1.0 || out.postscale != 1.0;
  return !scales || out.dtype != DType::kBool;
}

}  // namespace

HotCalls::HotCalls(py::object running, py::dict pending, py::object whole_job, py::object id_of)
    : running_(std::move(running)),
      pending_(std::move(pending)),
      whole_job_(std::move(whole_job)),
      id_of_(std::move(id_of)) {
  if (!is_running_object(running_)) throw py::type_error("running must be a Running");
}

py::object HotCalls::engine() const { return engine_of(running_); }

bool HotCalls::prepare(PyObject* const* args, Py_ssize_t count, Described& tensor,
                       TensorOperation& out) {
  if (count != kArguments) throw py::type_error("an allreduce takes 8 arguments");
  // Prepare the name last: it is in a thread-local string, which a nested call would overwrite if
  // preparing another argument runs Python code.
  return args[2] == Py_None && prepare_operator(args[4], out) &&
         prepare_factors(args[5], args[6], out) && prepare_set(args[7], out) &&
         prepare_tensor(args[0], args[1], tensor, out) && prepare_name(args[3], out);
}

bool HotCalls::prepare_other(Engine& engine, PyObject* const* args, Py_ssize_t count,
                             Described& tensor, TensorOperation& out, py::object& output) {
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

bool HotCalls::redirect(PyObject* output, PyObject* codes, TensorOperation& allreduce) {
  Described described;
  if (!describe(output, codes, described) || described.dtype != allreduce.dtype) return false;
  const std::span<const std::int64_t> shape(described.shape.data(), described.dims);
  if (!std::ranges::equal(shape, allreduce.shape)) return false;
  allreduce.memory.out = described.memory;
  return true;
}

py::object HotCalls::keep(const py::object& engine, std::int64_t number, PyObject* tensor) const {
  auto handle = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
  const py::object pending = pending_in_place(engine, tensor);
  if (handle && pending && PyDict_SetItem(pending_.ptr(), handle.ptr(), pending.ptr()) == 0) {
    return handle;
  }
  Py_INCREF(tensor);  // the engine works on its memory
  return {};
}

std::uint32_t HotCalls::number_of(PyObject* set) const {
  if (set == whole_job_.ptr()) return 0;
  const auto id = py::reinterpret_steal<py::object>(PyObject_CallOneArg(id_of_.ptr(), set));
  if (!id) throw py::error_already_set();
  return static_cast<std::uint32_t>(PyLong_AsLong(id.ptr()));
}

bool HotCalls::forget(PyObject* handle) const {
  if (PyDict_DelItem(pending_.ptr(), handle) == 0) return true;
  PyErr_Clear();
  return false;
}

bool HotCalls::prepare_set(PyObject* set, TensorOperation& out) const {
  out.process_set = number_of(set);
  return true;
}

}  // namespace hvdtune::python
