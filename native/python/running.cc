#include "python/running.h"

#include <structmember.h>

#include <array>

#include "engine/engine.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

// Not a class of pybind11's: its properties cost ten times what reading a member does, and every
// mark, counter and gradient reads this one.
struct Running {
  PyObject ob_base;
  PyObject* engine;  // null, or what Python's side has set
};

void free_running(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Py_CLEAR(reinterpret_cast<Running*>(self)->engine);
  type->tp_free(self);
  Py_DECREF(type);
}

std::array<PyMemberDef, 2> members = {{
    {"engine", T_OBJECT, offsetof(Running, engine), 0, "The engine of the job that runs, or None."},
    {},
}};

std::array<PyType_Slot, 4> running_slots = {{
    {Py_tp_dealloc, reinterpret_cast<void*>(free_running)},
    {Py_tp_members, members.data()},
    {Py_tp_doc, const_cast<char*>("Which engine runs in this process.")},
    {0, nullptr},
}};

PyType_Spec running_spec = {"hvdtune._native.Running", sizeof(Running), 0, Py_TPFLAGS_DEFAULT,
                            running_slots.data()};

std::array<PyStructSequence_Field, 5> pending_fields = {{
    {"engine", "the engine that runs the operation"},
    {"memory", "what must live until the operation is done"},
    {"finish", "makes the result of what the engine returns; None: the result is known"},
    {"result", "the result, if `finish` is None"},
    {nullptr, nullptr},
}};

PyStructSequence_Desc pending_description = {"hvdtune._native.Pending",
                                             "An operation whose result nobody has fetched.",
                                             pending_fields.data(), 4};

PyTypeObject* running_type = nullptr;  // both live as long as the process
PyTypeObject* pending_type = nullptr;

}  // namespace

void bind_running(py::module_& module) {
  running_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&running_spec));
  if (running_type == nullptr) throw py::error_already_set();
  pending_type = PyStructSequence_NewType(&pending_description);
  if (pending_type == nullptr) throw py::error_already_set();
  module.attr("Running") = py::handle(reinterpret_cast<PyObject*>(running_type));
  module.attr("Pending") = py::handle(reinterpret_cast<PyObject*>(pending_type));
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
  auto pending = py::reinterpret_steal<py::object>(PyStructSequence_New(pending_type));
  if (!pending) return {};
  const std::array<PyObject*, 4> values = {engine.ptr(), Py_None, Py_None, tensor.ptr()};
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyStructSequence_SetItem(pending.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(values[i]));
  }
  return pending;
}

PyObject* field_of(PyObject* pending, PendingField field) {
  return PyStructSequence_GetItem(pending, static_cast<Py_ssize_t>(field));
}

}  // namespace hvdtune::python
