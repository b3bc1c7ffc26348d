#include <utility>

#include "base/dtype.h"
#include "base/op_kind.h"
#include "observe/capture/capture_records.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace hvdtune::python {
namespace {

using capture::MarkKind;

}  // namespace

void bind_tables(py::module_& module) {
  py::dict dtypes;
  for (int code = 0; code < kDTypeCount; ++code) {
    dtypes[dtype_name(static_cast<DType>(code))] = code;
  }
  module.attr("DTYPES") = dtypes;
  py::dict kinds;
  for (int code = 0; code < kOpKindCount; ++code) {
    kinds[op_kind_lower_name(static_cast<OpKind>(code)).c_str()] = code;
  }
  module.attr("OP_KINDS") = kinds;
  py::dict marks;
  for (const auto& [name, kind] : {std::pair{"stall", MarkKind::kStall},
                                   {"autotune", MarkKind::kAutotune},
                                   {"straggler", MarkKind::kStraggler},
                                   {"user", MarkKind::kUser},
                                   {"phase", MarkKind::kPhase}}) {
    marks[name] = static_cast<int>(kind);
  }
  module.attr("MARKS") = marks;
}

}  // namespace hvdtune::python
