#pragma once

#include <mutex>

namespace hvdtune {

/// Guards what Submissions keeps; never held while anything is executed.
class TableMutex : public std::mutex {};

/// What a function takes that may only run under that mutex. Only Submissions makes one.
using TableLock = std::lock_guard<TableMutex>;

}  // namespace hvdtune
