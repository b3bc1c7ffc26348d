#include "python/tensors/device_arrays.h"

#include <pybind11/stl.h>

#include <string>

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// Results keep their memory alive as long as somebody has the object.
struct DeviceArray {
  DeviceBuffer buffer;
  DType dtype;
};

/// NumPy's type text. NumPy has no bfloat16: the caller knows that the bits are bfloat16.
std::string type_text(DType dtype) {
  const std::string bytes = std::to_string(dtype_size(dtype));
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kUint8:
      return "|u1";
    case DType::kInt8:
      return "|i1";
    case DType::kUint16:
      return "<u" + bytes;
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBfloat16:
      return "<i" + bytes;
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return "<f" + bytes;
  }
  return {};
}

py::dict cuda_array_interface(const DeviceArray& array) {
  py::dict interface;
  interface["shape"] = py::tuple(py::cast(array.buffer.shape()));
  interface["typestr"] = type_text(array.dtype);
  interface["data"] = py::make_tuple(array.buffer.pointer(), false);
  interface["strides"] = py::none();
  interface["stream"] = py::none();  // the owner has waited for it
  interface["version"] = 3;
  return interface;
}

/// When a GPU will be done with an operation that is done for the host.
struct DeviceDone {
  SharedEvent end;
};

}  // namespace

void bind_device_arrays(py::module_& module) {
  module.attr("gpus") = true;
  py::class_<DeviceDone>(module, "DeviceDone", "When a GPU will be done with an operation.")
      .def(
          "let_wait",
          [](const DeviceDone& done, std::uintptr_t stream) {
            wait_on(reinterpret_cast<CudaStream>(stream), *done.end);
          },
          py::arg("stream"))
      .def(
          "wait", [](const DeviceDone& done) { done.end->synchronize(); },
          py::call_guard<py::gil_scoped_release>());
  py::class_<DeviceArray>(module, "DeviceArray",
                          "An array in a GPU's memory, contiguous; bfloat16 as int16 bits.")
      .def_property_readonly("__cuda_array_interface__", &cuda_array_interface)
      .def_property_readonly(
          "shape", [](const DeviceArray& a) { return py::tuple(py::cast(a.buffer.shape())); })
      .def_property_readonly("device", [](const DeviceArray& a) { return a.buffer.device(); })
      .def("__repr__", [](const DeviceArray& array) {
        return "<hvdtune.DeviceArray " + wire::shape_text(array.buffer.shape()) + " of " +
               dtype_name(array.dtype) + " on GPU " + std::to_string(array.buffer.device()) + ">";
      });
}

py::object results_on_device(Operation& operation) {
  py::list outputs;
  std::vector<DeviceBuffer>& buffers = operation.on_device->outputs;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    outputs.append(
        py::cast(DeviceArray{std::move(buffers[i]), operation.request.tensors[i].dtype}));
  }
  if (!operation.on_device->end) return py::make_tuple(outputs, operation.numbers);
  return py::make_tuple(outputs, operation.numbers, DeviceDone{operation.on_device->end});
}

py::object device_memory(Engine& engine, std::vector<std::int64_t> shape, int dtype, int device) {
  if (!is_valid_dtype(dtype)) {
    throw Error(ErrorKind::kInvalidArgument, "unknown dtype code " + std::to_string(dtype));
  }
  wire::TensorSpec spec{static_cast<DType>(dtype), std::move(shape)};
  const auto bytes = static_cast<std::size_t>(spec.bytes());
  DeviceBuffer buffer(engine.gpus().use(device), bytes, std::move(spec.shape));
  return py::cast(DeviceArray{std::move(buffer), spec.dtype});
}

}  // namespace hvdtune::python
