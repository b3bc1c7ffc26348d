#include "python/calls/running.h"

#include <structmember.h>

#include <array>

#include "engine/engine.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

// These are not pybind11 classes, whose properties cost ten times as much as reading a member:
// every mark, counter and gradient reads the engine. They do not support cyclic garbage collection
// either: nothing that they hold refers to them.

struct Running {
  PyObject ob_base;
  PyObject* engine;  // set by Python: an Engine or None
};

struct Pending {
  PyObject ob_base;
  PyObject* engine;
  PyObject* memory;
  PyObject* finish;
  PyObject* result;
};

PyTypeObject* running_type = nullptr;  // both live as long as the process
PyTypeObject* pending_type = nullptr;

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* new_running(PyTypeObject* type, PyObject* /*args*/, PyObject* /*kwargs*/) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr) reinterpret_cast<Running*>(self)->engine = Py_NewRef(Py_None);
  return self;
}

void free_running(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Running*>(self)->engine);
  free_object(self);
}

PyObject* make_pending(PyObject* engine, PyObject* memory, PyObject* finish, PyObject* result) {
  auto* const self = PyObject_New(Pending, pending_type);
  if (self == nullptr) return nullptr;
  self->engine = Py_NewRef(engine);
  self->memory = Py_NewRef(memory);
  self->finish = Py_NewRef(finish);
  self->result = Py_NewRef(result);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_pending(PyTypeObject* /*type*/, PyObject* args, PyObject* /*kwargs*/) {
  PyObject* engine = nullptr;
  PyObject* memory = nullptr;
  PyObject* finish = nullptr;
  PyObject* result = nullptr;
  if (PyArg_ParseTuple(args, "OOOO:Pending", &engine, &memory, &finish, &result) == 0)
    return nullptr;
  return make_pending(engine, memory, finish, result);
}

void free_pending(PyObject* self) {
  auto* const pending = reinterpret_cast<Pending*>(self);
  Py_CLEAR(pending->engine);
  Py_CLEAR(pending->memory);
  Py_CLEAR(pending->finish);
  Py_CLEAR(pending->result);
  free_object(self);
}

std::array<PyMemberDef, 2> running_members = {{
    {"engine", T_OBJECT_EX, offsetof(Running, engine), 0, "The engine that runs, or None."},
    {},
}};

std::array<PyMemberDef, 5> pending_members = {{
    {"engine", T_OBJECT_EX, offsetof(Pending, engine), READONLY, "The engine that runs it."},
    {"memory", T_OBJECT_EX, offsetof(Pending, memory), READONLY,
     "Objects that must exist until it is done."},
    {"finish", T_OBJECT_EX, offsetof(Pending, finish), READONLY,
     "Makes the result from the engine's return value; None: the result is known."},
    {"result", T_OBJECT_EX, offsetof(Pending, result), READONLY, "The result, if it is known."},
    {},
}};

std::array<PyType_Slot, 5> running_slots = {{
    {Py_tp_new, reinterpret_cast<void*>(new_running)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_running)},
    {Py_tp_members, running_members.data()},
    {Py_tp_doc, const_cast<char*>("Which engine runs in this process.")},
    {0, nullptr},
}};

std::array<PyType_Slot, 5> pending_slots = {{
    {Py_tp_new, reinterpret_cast<void*>(new_pending)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_pending)},
    {Py_tp_members, pending_members.data()},
    {Py_tp_doc, const_cast<char*>("An operation whose result nobody has fetched.")},
    {0, nullptr},
}};

PyType_Spec running_spec = {"hvdtune._native.Running", sizeof(Running), 0, Py_TPFLAGS_DEFAULT,
                            running_slots.data()};
PyType_Spec pending_spec = {"hvdtune._native.Pending", sizeof(Pending), 0, Py_TPFLAGS_DEFAULT,
                            pending_slots.data()};

PyTypeObject* add_type(py::module_& module, const char* name, PyType_Spec& spec) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.attr(name) = py::handle(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

void bind_running(py::module_& module) {
  running_type = add_type(module, "Running", running_spec);
  pending_type = add_type(module, "Pending", pending_spec);
}

py::object engine_of(py::handle running) {
  static PyTypeObject* const type =
      reinterpret_cast<PyTypeObject*>(py::type::of<Engine>().release().ptr());
  PyObject* const engine = reinterpret_cast<Running*>(running.ptr())->engine;
  if (engine == nullptr || Py_TYPE(engine) != type) return {};
  return py::reinterpret_borrow<py::object>(engine);
}

bool is_running_object(py::handle object) { return Py_TYPE(object.ptr()) == running_type; }

py::object pending_in_place(py::handle engine, py::handle tensor) {
  return py::reinterpret_steal<py::object>(
      make_pending(engine.ptr(), Py_None, Py_None, tensor.ptr()));
}

PendingFields fields_of(PyObject* pending) {
  const auto* const found = reinterpret_cast<Pending*>(pending);
  return {found->engine, found->finish, found->result};
}

}  // namespace hvdtune::python
