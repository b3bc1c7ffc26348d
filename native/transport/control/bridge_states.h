#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvdtune {

class Arena;

/// The words of an arena that only rank 0's host changes, and that others are told (Bridge):
/// joined, watched, ended, stall_checks, end_position, recording_decided.
inline constexpr std::size_t kBridgeStates = 6;

/// What they are now.
std::array<std::uint64_t, kBridgeStates> bridge_states(Arena& arena);

/// Sets the one of that place. Wakes who sleeps on it. Throws wire::DecodeError where there is
/// none.
void set_bridge_state(Arena& arena, std::uint32_t state, std::uint64_t value);

}  // namespace hvdtune
