// Hooks on parameters. A hook runs for every parameter in every backward pass, and usually only has
// to note that it ran; entering Python for that would cost as much as the hook itself.
#include "python/bindings.h"

// Needs what pybind11 includes.
#include <structmember.h>

#include <cstddef>
#include <utility>

namespace py = pybind11;

namespace hvdtune::python {
namespace {

/// Interned once; attribute lookups compare pointers then.
struct Names {
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* version = PyUnicode_InternFromString("_version");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
};

const Names& names() {
  static const Names all;  // never freed: they live as long as the interpreter
  return all;
}

/// State that the hooks of one optimizer share: see _native.pyi.
struct StepState {
  StepState(py::object enabled, py::object hook)
      : grad_enabled(std::move(enabled)), otherwise(std::move(hook)) {}

  py::object grad_enabled;
  py::object otherwise;
  bool only_notes = false;
  bool pending = false;
};

/// See _native.pyi. Guarded by the interpreter lock.
struct GradientHook {
  PyObject_HEAD;
  PyObject* parameter;
  PyObject* owner;  // of `step`
  StepState* step;  // null before __init__
  PyObject* gradient;
  long long version;
  long long passes_left;
  char settled;
};

GradientHook& hook_in(PyObject* self) { return *reinterpret_cast<GradientHook*>(self); }

/// The counter of a tensor's changes in place; false with a Python error.
bool version_of(PyObject* tensor, long long& out) {
  const auto version = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, names().version));
  if (!version) return false;
  out = PyLong_AsLongLong(version.ptr());
  return out != -1 || PyErr_Occurred() == nullptr;
}

/// Remembers the gradient's present state; false with a Python error.
bool note_gradient(GradientHook& hook) {
  PyObject* gradient = PyObject_GetAttr(hook.parameter, names().grad);
  if (gradient == nullptr) return false;
  if (gradient == Py_None) {
    Py_CLEAR(hook.gradient);
    Py_DECREF(gradient);
    return true;
  }
  Py_XSETREF(hook.gradient, gradient);
  return version_of(gradient, hook.version);
}

bool is_true(PyObject* value) { return value == Py_True; }

int initialise(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* known[] = {"parameter", "step", "passes", nullptr};
  PyObject* parameter = nullptr;
  PyObject* owner = nullptr;
  long long passes = 0;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "OOL", const_cast<char**>(known), &parameter,
                                  &owner, &passes) == 0) {
    return -1;
  }
  if (!py::isinstance<StepState>(owner)) {
    PyErr_SetString(PyExc_TypeError, "a GradientHook takes a StepState");
    return -1;
  }
  GradientHook& hook = hook_in(self);
  Py_XSETREF(hook.parameter, Py_NewRef(parameter));
  Py_XSETREF(hook.owner, Py_NewRef(owner));
  hook.step = py::cast<StepState*>(py::handle(owner));
  hook.passes_left = passes;
  return 0;
}

PyObject* run_hook(PyObject* self, PyObject*, PyObject*) {
  GradientHook& hook = hook_in(self);
  if (hook.step == nullptr) {
    PyErr_SetString(PyExc_TypeError, "__init__ was not called");
    return nullptr;
  }
  StepState& step = *hook.step;
  if (step.only_notes && hook.passes_left == 1) {
    const auto graph =
        py::reinterpret_steal<py::object>(PyObject_CallNoArgs(step.grad_enabled.ptr()));
    if (!graph) return nullptr;
    if (!is_true(graph.ptr())) {
      step.pending = true;
      hook.passes_left = 0;
      if (hook.settled != 0 && !note_gradient(hook)) return nullptr;
      Py_RETURN_NONE;
    }
  }
  return PyObject_CallOneArg(step.otherwise.ptr(), self);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(hook_in(self).parameter);
  Py_VISIT(hook_in(self).owner);
  Py_VISIT(hook_in(self).gradient);
  return 0;
}

int clear(PyObject* self) {
  GradientHook& hook = hook_in(self);
  hook.step = nullptr;
  Py_CLEAR(hook.parameter);
  Py_CLEAR(hook.owner);
  Py_CLEAR(hook.gradient);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* note(PyObject* self, PyObject*) {
  GradientHook& hook = hook_in(self);
  if (hook.step == nullptr) {
    PyErr_SetString(PyExc_TypeError, "__init__ was not called");
    return nullptr;
  }
  if (!note_gradient(hook)) return nullptr;
  Py_RETURN_NONE;
}

PyMemberDef hook_members[] = {
    {"parameter", T_OBJECT_EX, offsetof(GradientHook, parameter), READONLY, nullptr},
    {"passes_left", T_LONGLONG, offsetof(GradientHook, passes_left), 0, nullptr},
    {"settled", T_BOOL, offsetof(GradientHook, settled), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef hook_methods[] = {
    {"note_gradient", note, METH_NOARGS, "note_gradient(self: GradientHook) -> None"},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot hook_slots[] = {
    {Py_tp_doc, const_cast<char*>("A parameter's hook, which notes that its gradient is ready.")},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(initialise)},
    {Py_tp_call, reinterpret_cast<void*>(run_hook)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_members, hook_members},
    {Py_tp_methods, hook_methods},
    {0, nullptr},
};

PyType_Spec hook_spec = {"hvdtune._native.GradientHook", sizeof(GradientHook), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, hook_slots};

PyTypeObject* hook_type = nullptr;  // owned by the module

GradientHook& checked(py::handle item) {
  if (PyObject_TypeCheck(item.ptr(), hook_type) == 0 || hook_in(item.ptr()).step == nullptr) {
    throw py::type_error("not a GradientHook that was initialised");
  }
  return hook_in(item.ptr());
}

/// Whether the gradient has been changed since note_gradient().
bool is_changed(const GradientHook& hook) {
  if (hook.gradient == nullptr) return false;
  long long version = 0;
  if (!version_of(hook.gradient, version)) throw py::error_already_set();
  return version != hook.version;
}

/// (gradients, the first hook whose gradient was changed after it ran), or None.
py::object gather_gradients(const py::list& hooks) {
  py::list gradients;
  py::object changed = py::none();
  for (const py::handle item : hooks) {
    const GradientHook& hook = checked(item);
    const auto parameter = py::reinterpret_borrow<py::object>(hook.parameter);
    const py::object trains = parameter.attr(py::handle(names().requires_grad));
    if (!is_true(trains.ptr())) return py::none();
    py::object gradient = parameter.attr(py::handle(names().grad));
    if (gradient.is_none()) return py::none();
    if (changed.is_none() && is_changed(hook)) changed = py::reinterpret_borrow<py::object>(item);
    gradients.append(std::move(gradient));
  }
  return py::make_tuple(gradients, changed);
}

void begin_step(const py::list& hooks, long long passes) {
  for (const py::handle item : hooks) {
    GradientHook& hook = checked(item);
    hook.passes_left = passes;
    Py_CLEAR(hook.gradient);
  }
}

}  // namespace

void bind_gradients(py::module_& module) {
  py::class_<StepState>(module, "StepState", "State that the hooks of one optimizer share.")
      .def(py::init<py::object, py::object>(), py::arg("grad_enabled"), py::arg("otherwise"))
      .def_readwrite("only_notes", &StepState::only_notes)
      .def_readwrite("pending", &StepState::pending);
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&hook_spec));
  if (!type) throw py::error_already_set();
  hook_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  module.add_object("GradientHook", type);
  module.def("gather_gradients", &gather_gradients, py::arg("hooks"),
             "The final gradients of parameters.");
  module.def(
      "is_changed", [](const py::object& hook) { return is_changed(checked(hook)); },
      py::arg("hook"), "Whether a gradient has been changed since its hook ran.");
  module.def("begin_step", &begin_step, py::arg("hooks"), py::arg("passes"),
             "Makes hooks start counting again.");
}

}  // namespace hvdtune::python
