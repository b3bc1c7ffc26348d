#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hvdtune::python {

/// The engine's view of a tensor.
struct Described {
  static constexpr std::size_t kMostDims = 16;

  void* memory = nullptr;
  DType dtype = DType::kFloat32;
  std::array<std::int64_t, kMostDims> shape;  // the first `dims` of them
  std::size_t dims = 0;
};

/// Describes a torch tensor or NumPy array; `codes` are dtype codes by the tensor's dtype. False,
/// without a Python error, for anything except dense writable CPU memory of a type in `codes`, and
/// for tensors without elements. The caller holds the interpreter lock.
bool describe(PyObject* tensor, PyObject* codes, Described& out);

}  // namespace hvdtune::python
