// Converts Python's arguments to the engine's, for the calls that are made for every gradient.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "engine/engine.h"
#include "python/tensors/tensors.h"

namespace hvdtune::python {

/// The calls that bypass Python's layers: see _native.pyi. All methods need the interpreter lock.
class HotCalls {
 public:
  static constexpr Py_ssize_t kArguments = 8;  // of prepare()
  static constexpr Py_ssize_t kFewest = 6;     // of prepare_other()
  static constexpr Py_ssize_t kMost = 10;

  /// `running`: a Running; `pending`: a Pending by handle; `id_of`: returns the number of any
  /// process set except `whole_job`. Throws TypeError if `running` is not a Running.
  HotCalls(pybind11::object running, pybind11::dict pending, pybind11::object whole_job,
           pybind11::object id_of);

  /// The running engine, or null.
  [[nodiscard]] pybind11::object engine() const;

  /// (tensor, codes, average, name, operator, prescale, postscale, process set): fills in an
  /// allreduce in place, which refers to `tensor`. False if it cannot be submitted like this: the
  /// slow path then handles it or reports the error.
  bool prepare(PyObject* const* args, Py_ssize_t count, Described& tensor, TensorOperation& out);

  /// The same for the other operations, of (kind, tensor, codes, name, process set, maker of the
  /// output, root, operator, prescale, postscale), of which the last four are optional. `output`
  /// gets the maker's result, or the tensor itself if there is no maker.
  bool prepare_other(Engine& engine, PyObject* const* args, Py_ssize_t count, Described& tensor,
                     TensorOperation& out, pybind11::object& output);

  /// Sets `output` as the result's memory of the allreduce that prepare() has filled in. False if
  /// it is not dense memory of the same type and shape.
  static bool redirect(PyObject* output, PyObject* codes, TensorOperation& allreduce);

  /// Lets Python's side wait for a handle later, and keeps the tensor until then. Null, with a
  /// Python error set, if there is no memory for that; the tensor is then kept for ever.
  [[nodiscard]] pybind11::object keep(const pybind11::object& engine, std::int64_t number,
                                      PyObject* tensor) const;

  /// The number of a process set. Throws Python's error for other objects.
  [[nodiscard]] std::uint32_t number_of(PyObject* set) const;

  [[nodiscard]] PyObject* pending() const { return pending_.ptr(); }

  /// False if the handle is unknown, or another thread was faster.
  bool forget(PyObject* handle) const;

 private:
  bool prepare_set(PyObject* set, TensorOperation& out) const;

  pybind11::object running_;
  pybind11::dict pending_;
  pybind11::object whole_job_;
  pybind11::object id_of_;
};

}  // namespace hvdtune::python
