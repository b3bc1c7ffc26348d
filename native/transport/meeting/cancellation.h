#pragma once

#include <mutex>
#include <string>

#include "base/error.h"

namespace hvdtune {

/// Ends a meeting that cannot succeed, from another thread: MeetingOptions::on_wait calls check().
/// Any thread may call any method.
class Cancellation {
 public:
  /// `why`: a sentence. The first call counts.
  void cancel(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "cancelled" : why;
  }
  /// Throws Error(kAborted) with the reason once cancel() has been called.
  void check() const {
    const std::lock_guard lock(mutex_);
    if (!why_.empty()) throw Error(ErrorKind::kAborted, why_);
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace hvdtune
