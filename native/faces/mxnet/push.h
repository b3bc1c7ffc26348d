// Collectives as operations of MXNet's dependency engine. Nothing is compiled against MXNet: its C
// interface is found in the library that the process has loaded.
#pragma once

#include <span>

#include "wire/request.h"

namespace hvdtune::faces::mxnet {

/// `library`: dlopen()'s handle of MXNet's. Throws Error(kInvalidArgument) with the names of the
/// functions that it lacks. Before the first push().
void find_c_interface(void* library);

/// Pushes an operation that reads the NDArrays `inputs` and writes `outputs`, given by their
/// handles. As soon as MXNet has computed its inputs, it is submitted to the engine that runs, and
/// it is done when the engine calls; both hold no thread meanwhile. Returns at once, with one
/// exception: if the inputs are computed and no other operation is in flight, as
/// Engine::submit_blocking() for a caller that is called. What fails after the push is raised
/// by MXNet (MXNetError) where an output is read. The handles may be freed at once.
///
/// `request` has everything but tensors; `outputs`: as many as inputs, the same arrays for an
/// operation in place. `priority`: for MXNet's engine. `tied`: further arrays by which the caller
/// keeps operations with this name apart: the one before must be complete, or have one array in
/// common with this one.
/// Throws Error at once for what submit() would refuse of the request, for arrays that are sparse,
/// on a GPU or of a type that cannot be exchanged, for outputs that share memory, and for a name
/// that an operation on other arrays has, unless it is complete.
void push(wire::Request request, std::span<void* const> inputs, std::span<void* const> outputs,
          std::span<void* const> tied, int priority);

/// A training step ends when MXNet has computed these NDArrays, which may be long after this call.
void push_step_mark(std::span<void* const> arrays);

}  // namespace hvdtune::faces::mxnet
