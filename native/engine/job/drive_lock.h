#pragma once

#include <mutex>

namespace hvdtune {

/// The thread that makes this rank's progress holds it, but never while sleeping. A thread that
/// also needs the mutex of Submissions locks this one first; DirectRounds, which holds the other
/// already, only tries to lock this one.
class DriveMutex : public std::timed_mutex {};

/// Parameter of functions that may run only while nobody else makes progress. The caller must hold
/// the mutex through it; this is not checked.
using DriveLock = std::unique_lock<DriveMutex>;

}  // namespace hvdtune
