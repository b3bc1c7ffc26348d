// The custom calls for TensorFlow's XLA, which supports only untyped targets: C functions that get
// addresses and a text.
#pragma once

#include <cstddef>
#include <string>

namespace hvdtune::faces::xla {

/// Registers the targets for the CPU with the XLA in the library at `path`, which the process must
/// have loaded. If functions are missing in the library, or errors could not be returned, throws
/// Error(kInvalidArgument) with the reason, and registers nothing. Once; one thread at a time.
void register_untyped_calls(const std::string& path);

/// "hvdtune_collective": a collective on all operands except the last, like run_call(). The last
/// operand and the last result are one int32 each, with which the compiled program chains the
/// calls: never more than one runs at a time. `text` has words separated by one space: the numbers,
/// as in CallNumber; both factors; the number of tensors; for each its dtype (as DType), rank and
/// dimensions; the same for each result; and the rest is the name.
void call_untyped_collective(void* results, const void** operands, const char* text,
                             std::size_t length, void* status);

/// "hvdtune_place": an int32, a number of this rank's place. `text`: which number (as Place), and
/// the process set.
void call_untyped_place(void* result, const void** operands, const char* text, std::size_t length,
                        void* status);

/// "hvdtune_step_end": a training step ends; `text`: its owner, see end_step(). The operand and the
/// result chain the call with those of collectives.
void call_untyped_step_end(void* result, const void** operands, const char* text,
                           std::size_t length, void* status);

}  // namespace hvdtune::faces::xla
