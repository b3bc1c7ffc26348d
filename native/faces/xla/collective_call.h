#pragma once

#include "faces/xla/ffi_declarations.h"

namespace hvdtune::faces::xla {

/// The handler of XLA's custom call for all collectives on the CPU: it submits its arguments to the
/// engine that runs, and returns when the results are there. Never more than one at a time: who
/// compiles the program chains them by tokens, which are skipped among arguments and results.
///
/// Its attributes:
///     name     string, as all ranks know it; of several tensors that are no group each has a
///              number behind it
///     numbers  int64: as CallNumber in call.h
///     factors  float64: what is multiplied before and after a reduction
///     splits   int64: rows for each member, then rows from each; alltoall only, empty for equal
///     parts
/// Errors have the engine's text. Allgather, alltoall and reducescatter fail where their results do
/// not have the shapes that the program was compiled with.
FfiError* call_collective(FfiCallFrame* frame);

}  // namespace hvdtune::faces::xla
