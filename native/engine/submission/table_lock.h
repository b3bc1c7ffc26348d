#pragma once

#include <mutex>

namespace hvdtune {

/// Guards what Submissions keeps. Held shortly, and never while a batch is executed; the longest is
/// the result of a direct round: up to 1 MiB to reduce, or 10 ms of waiting for a shared sum.
class TableMutex : public std::mutex {};

/// What a function takes that may only run under that mutex. Only Submissions makes one.
using TableLock = std::lock_guard<TableMutex>;

}  // namespace hvdtune
