// The calls that are made for every gradient, as methods that Python calls without building an
// argument tuple. pybind11's dispatch and conversions cost more than the engine's own part.
#include "python/hot_calls.h"

#include <pybind11/numpy.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "engine/engine.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// Interned once; attribute lookups compare pointers then.
struct Names {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};

const Names& names() {
  static const Names all;  // never freed: they live as long as the interpreter
  return all;
}

py::object attribute(PyObject* object, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
}

py::object call(PyObject* object, PyObject* method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
}

/// What the engine has to know of a tensor.
struct Described {
  std::uintptr_t address = 0;
  wire::TensorSpec spec;
};

/// The type's code; negative, perhaps with a Python error set, when `codes` has none.
int code_of(PyObject* tensor, PyObject* codes) {
  const py::object dtype = attribute(tensor, names().dtype);
  if (!dtype) return -1;
  PyObject* code = PyDict_GetItemWithError(codes, dtype.ptr());
  return code == nullptr ? -1 : static_cast<int>(PyLong_AsLong(code));
}

/// By its name: asking pybind11 whether something is an array would import NumPy.
bool is_array(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") == 0;
}

/// The address of a NumPy array that can be written to as it is; 0 if it is none.
std::uintptr_t address_of_array(PyObject* array) {
  constexpr int kNeeded = static_cast<int>(py::array::c_style) |
                          static_cast<int>(py::detail::npy_api::NPY_ARRAY_ALIGNED_) |
                          static_cast<int>(py::detail::npy_api::NPY_ARRAY_WRITEABLE_);
  const auto* proxy = py::detail::array_proxy(array);
  if ((proxy->flags & kNeeded) != kNeeded) return 0;
  return reinterpret_cast<std::uintptr_t>(proxy->data);
}

/// The address of a dense torch tensor on the CPU; 0, perhaps with a Python error set, if it is
/// none.
std::uintptr_t address_of_tensor(PyObject* tensor) {
  const Names& n = names();
  if (attribute(tensor, n.is_cpu).ptr() != Py_True) return 0;
  if (call(tensor, n.is_contiguous).ptr() != Py_True) return 0;
  if (call(tensor, n.is_neg).ptr() != Py_False) return 0;
  const py::object address = call(tensor, n.data_ptr);
  return address ? PyLong_AsSize_t(address.ptr()) : 0;
}

/// False, perhaps with a Python error set, for whatever is not dense memory of a type in `codes`
/// (and for what has none: no elements); the slow path knows the words for it.
bool describe(PyObject* tensor, PyObject* codes, Described& out) {
  const int code = code_of(tensor, codes);
  if (code < 0) return false;
  out.spec.dtype = static_cast<DType>(code);
  out.address = is_array(tensor) ? address_of_array(tensor) : address_of_tensor(tensor);
  if (out.address == 0) return false;
  const py::object shape = attribute(tensor, names().shape);
  if (!shape || !PyTuple_Check(shape.ptr())) return false;
  const Py_ssize_t dims = PyTuple_GET_SIZE(shape.ptr());
  out.spec.shape.reserve(static_cast<std::size_t>(dims));
  for (Py_ssize_t dim = 0; dim < dims; ++dim) {
    out.spec.shape.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), dim)));
  }
  return PyErr_Occurred() == nullptr;
}

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

/// (tensor, name, codes, operator, prescale, postscale, process set): fills in an allreduce in
/// place. False when the tensor is not one that can be handed over as it is.
bool prepare(PyObject* const* args, Py_ssize_t count, Submission& submission) {
  if (count != 7) throw py::type_error("an allreduce in place takes 7 arguments");
  Described tensor;
  Py_ssize_t length = 0;
  const char* name = PyUnicode_Check(args[1]) ? PyUnicode_AsUTF8AndSize(args[1], &length) : nullptr;
  if (name == nullptr || !describe(args[0], args[2], tensor)) {
    PyErr_Clear();
    return false;
  }
  wire::Request& request = submission.request;
  request.kind = OpKind::kAllreduce;
  constexpr std::string_view kPrefix = "allreduce.";
  request.name.reserve(kPrefix.size() + static_cast<std::size_t>(length));
  request.name.append(kPrefix).append(name, static_cast<std::size_t>(length));
  request.reduce_op = static_cast<ReduceOp>(PyLong_AsLong(args[3]));
  request.prescale = PyFloat_AsDouble(args[4]);
  request.postscale = PyFloat_AsDouble(args[5]);
  request.process_set = static_cast<std::uint32_t>(PyLong_AsLong(args[6]));
  if (PyErr_Occurred() != nullptr) {  // not a number: the slow path says so
    PyErr_Clear();
    return false;
  }
  if (std::isnan(request.prescale) || std::isnan(request.postscale)) return false;
  const bool scales = request.reduce_op == ReduceOp::kAverage || request.prescale != 1.0 ||
                      request.postscale != 1.0;
  if (scales && tensor.spec.dtype == DType::kBool) return false;
  request.tensors.push_back(std::move(tensor.spec));
  auto* memory = reinterpret_cast<void*>(tensor.address);  // NOLINT(performance-no-int-to-ptr)
  submission.memory.push_back({memory, memory});
  return true;
}

/// prepare()'s arguments -> handle, or None.
PyObject* submit_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    Submission submission;
    if (!prepare(args, count, submission)) Py_RETURN_NONE;
    // The interpreter lock stays: submitting never waits for anybody.
    return PyLong_FromLongLong(py::cast<Engine&>(py::handle(self)).submit(std::move(submission)));
  });
}

/// prepare()'s arguments -> True when it is done, or None.
PyObject* allreduce_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    Submission submission;
    if (!prepare(args, count, submission)) Py_RETURN_NONE;
    auto& engine = py::cast<Engine&>(py::handle(self));
    std::int64_t handle = 0;
    {
      const py::gil_scoped_release release;
      handle = engine.submit_blocking(std::move(submission));
    }
    try {
      collect(engine, handle);
    } catch (const py::error_already_set&) {
      // Interrupted: the engine goes on working on the tensor, whose memory must stay.
      Py_INCREF(args[0]);
      throw;
    }
    Py_RETURN_TRUE;
  });
}

/// (handle) -> what wait() and take() give, None when the operation brought nothing.
PyObject* collect_results(PyObject* self, PyObject* handle) {
  return translated([&]() -> PyObject* {
    const std::int64_t number = PyLong_AsLongLong(handle);
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return collect(py::cast<Engine&>(py::handle(self)), number).release().ptr();
  });
}

template <typename Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// The first line of each text is a signature, as pybind11 writes it for the other methods.
std::array<PyMethodDef, 3> methods = {{
    {"submit_in_place", fast(submit_in_place), METH_FASTCALL,
     "submit_in_place(self: Engine, tensor: object, name: object, codes: dict, reduce_op: int, "
     "prescale: float, postscale: float, process_set: int) -> object"},
    {"allreduce_in_place", fast(allreduce_in_place), METH_FASTCALL,
     "allreduce_in_place(self: Engine, tensor: object, name: object, codes: dict, reduce_op: int, "
     "prescale: float, postscale: float, process_set: int) -> object"},
    {"collect", collect_results, METH_O, "collect(self: Engine, handle: int) -> object"},
}};

}  // namespace

void add_hot_calls(py::handle engine_type) {
  auto* type = reinterpret_cast<PyTypeObject*>(engine_type.ptr());
  for (PyMethodDef& method : methods) {
    const auto descriptor = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &method));
    if (!descriptor) throw py::error_already_set();
    py::setattr(engine_type, method.ml_name, descriptor);
  }
}

}  // namespace hvdtune::python
