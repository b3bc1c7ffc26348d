#pragma once

#include <mutex>

namespace hvdtune {

/// Held by whoever makes this rank's progress, never while sleeping. If a thread needs the mutex of
/// Submissions as well, it takes that one second.
class DriveMutex : public std::timed_mutex {};

/// What a function takes that may only run while nobody else makes progress. Its caller holds the
/// mutex by it.
using DriveLock = std::unique_lock<DriveMutex>;

}  // namespace hvdtune
