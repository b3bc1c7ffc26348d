#pragma once

#include <mutex>

namespace hvdtune {

/// The thread that makes this rank's progress holds it, never while sleeping. A thread that also
/// needs the mutex of Submissions takes that one second; DirectRounds, which holds that one, only
/// tries to lock this.
class DriveMutex : public std::timed_mutex {};

/// Parameter of functions that may run only while nobody else makes progress. The caller must hold
/// the mutex through it; this is not checked.
using DriveLock = std::unique_lock<DriveMutex>;

}  // namespace hvdtune
