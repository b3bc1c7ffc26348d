#pragma once

#include <mutex>

namespace hvdtune {

/// Held by whoever makes this rank's progress, never while sleeping. If a thread needs the mutex of
/// Submissions as well, it takes that one second; DirectRounds, which has that one, only tries
/// this.
class DriveMutex : public std::timed_mutex {};

/// What a function takes that may only run while nobody else makes progress. Its caller must hold
/// the mutex by it: whether it does is not checked.
using DriveLock = std::unique_lock<DriveMutex>;

}  // namespace hvdtune
