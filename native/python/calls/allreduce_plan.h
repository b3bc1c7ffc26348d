// Many allreduces that are repeated together, such as those of an optimizer's gradients.
#pragma once

#include <pybind11/pybind11.h>

namespace hvdtune::python {

/// Adds the class AllreducePlan.
void bind_allreduce_plan(pybind11::module_& module);

}  // namespace hvdtune::python
