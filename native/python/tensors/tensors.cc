#include "python/tensors/tensors.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>

#include "python/tensors/dlpack.h"

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

/// False, perhaps with a Python error set, if `codes` does not have the type.
bool find_code(PyObject* dtype, PyObject* codes, DType& out) {
  PyObject* code = PyDict_GetItemWithError(codes, dtype);
  if (code == nullptr) return false;
  out = static_cast<DType>(PyLong_AsLong(code));
  return true;
}

template <typename Dim>
bool take_shape(const Dim* shape, std::int64_t dims, Described& out) {
  if (dims < 0 || static_cast<std::size_t>(dims) > Described::kMostDims) return false;
  out.dims = static_cast<std::size_t>(dims);
  std::copy(shape, shape + dims, out.shape.begin());
  return true;
}

// ---- NumPy --------------------------------------------------------------------------------------

/// By its name: asking pybind11 whether something is an array would import NumPy.
bool is_array(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") == 0;
}

bool describe_array(PyObject* array, PyObject* codes, Described& out) {
  constexpr int kNeeded = static_cast<int>(py::array::c_style) |
                          static_cast<int>(py::detail::npy_api::NPY_ARRAY_ALIGNED_) |
                          static_cast<int>(py::detail::npy_api::NPY_ARRAY_WRITEABLE_);
  const auto* proxy = py::detail::array_proxy(array);
  if ((proxy->flags & kNeeded) != kNeeded) return false;
  out.memory = proxy->data;
  return take_shape(proxy->dimensions, proxy->nd, out) && find_code(proxy->descr, codes, out.dtype);
}

// ---- torch --------------------------------------------------------------------------------------

/// A torch tensor, asked attribute by attribute.
bool describe_tensor(PyObject* tensor, PyObject* codes, Described& out) {
  const Names& n = names();
  const py::object dtype = attribute(tensor, n.dtype);
  if (!dtype || !find_code(dtype.ptr(), codes, out.dtype)) return false;
  if (attribute(tensor, n.is_cpu).ptr() != Py_True) return false;
  if (call(tensor, n.is_contiguous).ptr() != Py_True) return false;
  if (call(tensor, n.is_neg).ptr() != Py_False) return false;
  const py::object address = call(tensor, n.data_ptr);
  if (!address) return false;
  out.memory = PyLong_AsVoidPtr(address.ptr());
  const py::object shape = attribute(tensor, n.shape);
  if (!shape || !PyTuple_Check(shape.ptr())) return false;
  std::array<std::int64_t, Described::kMostDims> dims{};
  const Py_ssize_t count = PyTuple_GET_SIZE(shape.ptr());
  for (Py_ssize_t dim = 0; dim < std::min<Py_ssize_t>(count, Described::kMostDims); ++dim) {
    dims[static_cast<std::size_t>(dim)] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), dim));
  }
  return take_shape(dims.data(), count, out);
}

/// torch's own tensor type provides everything in one call, from version 2.10 on. Reading attribute
/// by attribute costs about as much as the engine's whole part in submitting the tensor.
struct Exchange {
  PyTypeObject* type = nullptr;  // the type that was looked up; subclasses may behave differently
  const dlpack::ExchangeAPI* api = nullptr;
  PyObject* codes = nullptr;  // that have the type's dtypes
};
Exchange exchange;  // guarded by the interpreter lock

bool dtype_of(const dlpack::DLTensor& tensor, DType& out) {
  struct Known {
    dlpack::DLDataTypeCode code;
    int bits;
    DType dtype;
  };
  static constexpr Known kKnown[] = {
      {dlpack::kDLFloat, 32, DType::kFloat32},   {dlpack::kDLFloat, 16, DType::kFloat16},
      {dlpack::kDLBfloat, 16, DType::kBfloat16}, {dlpack::kDLFloat, 64, DType::kFloat64},
      {dlpack::kDLInt, 64, DType::kInt64},       {dlpack::kDLInt, 32, DType::kInt32},
      {dlpack::kDLInt, 16, DType::kInt16},       {dlpack::kDLInt, 8, DType::kInt8},
      {dlpack::kDLUInt, 8, DType::kUint8},       {dlpack::kDLUInt, 16, DType::kUint16},
      {dlpack::kDLBool, 8, DType::kBool},
  };
  for (const Known& known : kKnown) {
    if (tensor.dtype.code != known.code || tensor.dtype.bits != known.bits) continue;
    out = known.dtype;
    return tensor.dtype.lanes == 1;
  }
  return false;
}

bool without_gaps(const dlpack::DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t dim = tensor.ndim - 1; dim >= 0; --dim) {
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != expected) return false;
    expected *= tensor.shape[dim];
  }
  return true;
}

/// Whether exchange_tensor() knows the type; looked up once for the first type that is asked for.
bool has_exchange(PyObject* tensor, PyObject* codes) {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type == exchange.type) return exchange.api != nullptr && codes == exchange.codes;
  if (exchange.type != nullptr || std::strcmp(type->tp_name, "Tensor") != 0) return false;
  DType ignored;
  const py::object dtype = attribute(tensor, names().dtype);
  if (!dtype || !find_code(dtype.ptr(), codes, ignored)) return false;
  Py_INCREF(type);
  Py_INCREF(codes);
  exchange.type = type;
  exchange.codes = codes;
  PyObject* capsule = PyDict_GetItemString(type->tp_dict, dlpack::kAttribute);
  if (capsule == nullptr) return false;
  const auto* api =
      static_cast<const dlpack::ExchangeAPI*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  if (api == nullptr || api->major != dlpack::kMajorVersion) return false;
  if (api->tensor_from_py_object == nullptr) return false;
  exchange.api = api;
  return true;
}

/// `codes` have all the types of dtype_of(), as far as the framework has them.
bool exchange_tensor(PyObject* tensor, Described& out) {
  dlpack::DLTensor found{};
  if (exchange.api->tensor_from_py_object(tensor, &found) != 0) return false;
  if (found.device.type != dlpack::kDLCPU || found.data == nullptr) return false;
  if (!without_gaps(found) || !dtype_of(found, out.dtype)) return false;
  // The exchange does not say whether the bits must be negated or conjugated.
  if (call(tensor, names().is_neg).ptr() != Py_False) return false;
  out.memory = static_cast<std::byte*>(found.data) + found.byte_offset;
  return take_shape(found.shape, found.ndim, out);
}

}  // namespace

bool describe(PyObject* tensor, PyObject* codes, Described& out) {
  out.memory = nullptr;
  bool described = false;
  if (is_array(tensor)) {
    described = describe_array(tensor, codes, out);
  } else if (has_exchange(tensor, codes)) {
    described = exchange_tensor(tensor, out);
  } else if (PyErr_Occurred() == nullptr) {
    described = describe_tensor(tensor, codes, out);
  }
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return described && out.memory != nullptr;
}

}  // namespace hvdtune::python
