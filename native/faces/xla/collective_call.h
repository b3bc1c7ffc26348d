#pragma once

#include "faces/xla/ffi_declarations.h"

namespace hvdtune::faces::xla {

/// The handler of XLA's custom call for all collectives on the CPU: it submits its arguments to the
/// running engine, and returns when the results are complete. Never more than one runs at a time:
/// the compiled program chains the calls with tokens, which the handler skips among arguments and
/// results.
///
/// Its attributes:
///     name     string, as all ranks know it; several tensors that are not a group each get a
///              number after it
///     numbers  int64: as CallNumber in call.h
///     factors  float64: multiplied before and after a reduction
///     splits   int64: rows for each member, then rows from each; alltoall only, empty for equal
///              parts
///
/// Errors have the engine's text. Allgather, alltoall and reducescatter fail if their results do
/// not have the shapes that the program was compiled with, and every call that was compiled for a
/// place fails in another.
FfiError* call_collective(FfiCallFrame* frame);

}  // namespace hvdtune::faces::xla
