#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvdtune {

class Arena;

/// Number of the arena's words that only rank 0's host changes, and sends to the others (Bridge):
/// joined, watched, ended, stall_checks, end_position, recording_decided.
inline constexpr std::size_t kBridgeStates = 6;

/// Their present values.
std::array<std::uint64_t, kBridgeStates> bridge_states(Arena& arena);

/// Sets the word with index `state`, and wakes any thread that sleeps on it. Throws
/// wire::DecodeError if there is no such word.
void set_bridge_state(Arena& arena, std::uint32_t state, std::uint64_t value);

}  // namespace hvdtune
