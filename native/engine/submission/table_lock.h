#pragma once

#include <mutex>

namespace hvdtune {

/// Guards the state of Submissions. Held only briefly, and never while a batch is executed. The
/// longest use is the result of a direct round: a reduction of up to 1 MiB, or a wait of 10 ms for
/// a shared sum.
class TableMutex : public std::mutex {};

/// Parameter of functions that may run only under that mutex. Only Submissions makes one.
using TableLock = std::lock_guard<TableMutex>;

}  // namespace hvdtune
