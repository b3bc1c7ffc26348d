#include "python/calls/allreduce_plan.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "python/calls/hot_arguments.h"
#include "python/calls/methods.h"
#include "python/tensors/tensors.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// A tensor's description when it was submitted, and the engine's number of it. Small, because with
/// hundreds of tensors this data has left the cache since the previous step.
class Remembered {
 public:
  /// If the tensor has too many dimensions, returns false and then matches no tensor.
  bool remember(const Described& tensor) {
    dims_ = kNothing;
    if (tensor.dims > kMostDims) return false;
    dims_ = static_cast<std::uint8_t>(tensor.dims);
    dtype_ = tensor.dtype;
    std::copy_n(tensor.shape.begin(), tensor.dims, shape_.begin());
    return true;
  }
  [[nodiscard]] bool is(const Described& tensor) const {
    return tensor.dims == dims_ && tensor.dtype == dtype_ &&
           std::equal(shape_.begin(), shape_.begin() + dims_, tensor.shape.begin());
  }

 private:
  static constexpr std::size_t kMostDims = 4;
  static constexpr std::uint8_t kNothing = UINT8_MAX;  // more than a tensor has

  std::uint8_t dims_ = kNothing;
  DType dtype_ = DType::kFloat32;
  std::array<std::int64_t, kMostDims> shape_{};
};

/// See _native.pyi. Guarded by the interpreter lock.
struct AllreducePlan {
  AllreducePlan(py::object calls, py::object codes, py::tuple names, const py::tuple& rest)
      : calls(std::move(calls)),
        codes(std::move(codes)),
        names(std::move(names)),
        op(rest[0]),
        prescale(rest[1]),
        postscale(rest[2]),
        process_set(rest[3]),
        tensors(this->names.size()),
        known(this->names.size()) {}

  py::object calls, codes;
  py::tuple names;
  py::object op, prescale, postscale, process_set;

  std::vector<Remembered> tensors;
  std::vector<KnownOperation> known;
};

/// One run of a plan.
class Together {
 public:
  Together(AllreducePlan& plan, py::object engine, const py::list& tensors)
      : plan_(plan),
        calls_(object_in<HotCalls>(plan.calls.ptr())),
        owner_(std::move(engine)),
        tensors_(tensors),
        memory_(tensors_.size()) {
    handles_.reserve(tensors_.size());
  }

  /// Throws at the first tensor that is refused; the earlier ones are under way.
  void submit() {
    describe_all();
    Engine::HeldRings held(engine());
    while (handles_.size() < memory_.size()) {
      const std::size_t first = handles_.size();
      std::size_t end = first;
      while (end < memory_.size() && memory_[end].in != nullptr) ++end;
      if (first < end) {
        const std::size_t count = end - first;
        engine().submit_again(std::span(plan_.known).subspan(first, count),
                              std::span(memory_).subspan(first, count), handles_);
      }
      // The first one that has changed, or that the engine does not know any more.
      if (handles_.size() < memory_.size()) submit_anew(handles_.size());
    }
    held.then_waits();
  }

  /// Throws if it is interrupted.
  void wait() {
    // The last one first: a blocked wait makes the coordinator close its batch.
    for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {
      if (*handle <= 0) continue;
      if (!engine().is_done(*handle)) python::wait(engine(), *handle);
      // Failed ones stay; usually all are done.
      engine().retire(std::span(handles_.begin(), handle.base()));
    }
  }

  /// Appends each one's outcome so far to a list; false unless all are reduced.
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
  static constexpr std::int64_t kReduced = 0;        // as retire() leaves it

  [[nodiscard]] Engine& engine() const { return object_in<Engine>(owner_.ptr()); }
  [[nodiscard]] PyObject* tensor(std::size_t i) const {
    return PyTuple_GET_ITEM(tensors_.ptr(), static_cast<Py_ssize_t>(i));
  }

  /// Finds the addresses of the tensors whose type and shape have not changed.
  void describe_all() {
    Described found;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (plan_.known[i].slot == wire::kNoSlot) continue;
      if (describe(tensor(i), plan_.codes.ptr(), found) && plan_.tensors[i].is(found)) {
        memory_[i] = {found.memory, found.memory};
      }
    }
  }

  void submit_anew(std::size_t i) {
    const std::array<PyObject*, HotCalls::kArguments> args = {
        tensor(i),
        plan_.codes.ptr(),
        Py_None,
        PyTuple_GET_ITEM(plan_.names.ptr(), static_cast<Py_ssize_t>(i)),
        plan_.op.ptr(),
        plan_.prescale.ptr(),
        plan_.postscale.ptr(),
        plan_.process_set.ptr()};
    Described described;
    TensorOperation allreduce;
    if (!calls_.prepare(args.data(), args.size(), described, allreduce)) {
      handles_.push_back(kNotSubmitted);
      return;
    }
    handles_.push_back(engine().submit(allreduce));
    const bool remembered = plan_.tensors[i].remember(described);
    plan_.known[i] = remembered ? engine().known(handles_.back()) : KnownOperation{};
  }

  AllreducePlan& plan_;
  HotCalls& calls_;
  py::object owner_;
  py::tuple tensors_;                 // a copy: the list may change while this waits
  std::vector<TensorMemory> memory_;  // null: must be described again
  std::vector<std::int64_t> handles_;
};

/// (tensors, outcomes) -> whether all are reduced.
PyObject* reduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto& plan = object_in<AllreducePlan>(self);
    if (count != 2 || !PyList_CheckExact(args[0]) || !PyList_Check(args[1]) ||
        static_cast<std::size_t>(PyList_GET_SIZE(args[0])) != plan.known.size()) {
      throw py::type_error("reduce takes a list of as many tensors as there are names, and a list");
    }
    auto outcomes = py::reinterpret_borrow<py::list>(args[1]);
    py::object engine = object_in<HotCalls>(plan.calls.ptr()).engine();
    if (!engine) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); ++i) outcomes.append(py::bool_(false));
      Py_RETURN_FALSE;
    }
    Together together(plan, std::move(engine), py::reinterpret_borrow<py::list>(args[0]));
    try {
      together.submit();
      together.wait();
    } catch (...) {
      together.report(outcomes);
      throw;
    }
    return PyBool_FromLong(together.report(outcomes) ? 1 : 0);
  });
}

PyMethodDef reduce_method = {"reduce", fast(reduce), METH_FASTCALL,
                             "reduce(self: AllreducePlan, tensors: list, outcomes: list) -> bool"};

}  // namespace

void bind_allreduce_plan(py::module_& module) {
  py::class_<AllreducePlan> type(module, "AllreducePlan",
                                 "Allreduces in place that are repeated together.");
  type.def(py::init([](py::object calls, py::dict codes, py::tuple names, const py::object& op,
                       double prescale, double postscale, const py::object& process_set) {
             if (!py::isinstance<HotCalls>(calls)) throw py::type_error("calls: a HotCalls");
             return std::make_unique<AllreducePlan>(
                 std::move(calls), std::move(codes), std::move(names),
                 py::make_tuple(op, prescale, postscale, process_set));
           }),
           py::arg("calls"), py::arg("codes"), py::arg("names"), py::arg("op"),
           py::arg("prescale_factor"), py::arg("postscale_factor"), py::arg("process_set"));
  add_method(type, reduce_method);
}

}  // namespace hvdtune::python
