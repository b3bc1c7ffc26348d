// The custom calls of TensorFlow's XLA, which knows only untyped targets: C functions that get
// addresses and a text.
#pragma once

#include <cstddef>
#include <string>

namespace hvdtune::faces::xla {

/// Registers the targets for the CPU with the XLA in the library at `path`, which the process must
/// have loaded. Throws Error(kInvalidArgument), and registers nothing, with the names of what the
/// library lacks, or if errors would not arrive. Once; one thread at a time.
void register_untyped_calls(const std::string& path);

/// "hvdtune_collective": a collective on the operands but the last, as run_call(). The last operand
/// and the last result are one int32 each, by which whoever compiles the program chains the calls:
/// never more than one runs at a time. `text` has words with one space between: the numbers, as
/// CallNumber; both factors; how many tensors; of each its dtype (as DType), rank and dimensions;
/// the same of each result; and, to the end, the name.
void call_untyped_collective(void* results, const void** operands, const char* text,
                             std::size_t length, void* status);

/// "hvdtune_place": an int32 of where this rank is. `text`: which (as Place), and the process set.
void call_untyped_place(void* result, const void** operands, const char* text, std::size_t length,
                        void* status);

/// "hvdtune_step_end": a training step ends; `text`: whose, see end_step(). The operand and the
/// result are those by which the calls of collectives are chained.
void call_untyped_step_end(void* result, const void** operands, const char* text,
                           std::size_t length, void* status);

}  // namespace hvdtune::faces::xla
