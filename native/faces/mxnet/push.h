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
/// handles. As soon as MXNet has computed the inputs, the operation is submitted to the running
/// engine, and it is done when the engine calls back; neither blocks a thread meanwhile. Returns at
/// once, with one exception: if the inputs are computed and no other operation is in flight, it may
/// wait like Engine::submit_blocking() with a callback. If the operation fails after the push,
/// MXNet raises MXNetError when an output is read. The handles may be freed at once.
///
/// `request` has everything except tensors; `outputs`: as many as inputs, the same arrays for an
/// operation in place. `priority`: for MXNet's engine. `tied`: further arrays that order operations
/// with this name: the previous one must be complete, or have an array in common with this one.
/// Throws Error at once if submit() would refuse the request; for arrays that are sparse, on a GPU
/// or of an unsupported type; for outputs that share memory; and for the name of an incomplete
/// operation on other arrays.
void push(wire::Request request, std::span<void* const> inputs, std::span<void* const> outputs,
          std::span<void* const> tied, int priority);

/// A training step ends when MXNet has computed these NDArrays, which may be long after this call.
void push_step_mark(std::span<void* const> arrays);

}  // namespace hvdtune::faces::mxnet
