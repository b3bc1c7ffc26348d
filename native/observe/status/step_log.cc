#include "observe/status/step_log.h"

#include <chrono>

namespace hvdtune {

void StepLog::tensor(const std::string& identity, bool named, std::int64_t tensors,
                     std::int64_t bytes, Nanos now, std::uint64_t epoch) {
  unnamed_in_a_row_ = named ? 0 : unnamed_in_a_row_ + 1;
  if (ends_step(identity, named)) {
    finish_step(now, epoch);
    seen_.insert(identity);
  }
  current_.named = current_.named || named;
  current_.tensors += tensors;
  current_.bytes += bytes;
}

/// Whether the tensor begins the next step; if not, adds it to this step.
bool StepLog::ends_step(const std::string& identity, bool named) {
  if (!named && (current_.named || previous_named_)) return unnamed_in_a_row_ > kUnnamedInARow;
  make_room();
  return !seen_.insert(identity).second;
}

void StepLog::known_tensor(std::uint64_t last_step, std::int64_t tensors, std::int64_t bytes,
                           Nanos now, std::uint64_t epoch) {
  if (last_step == step()) finish_step(now, epoch);
  current_.named = true;
  unnamed_in_a_row_ = 0;
  current_.tensors += tensors;
  current_.bytes += bytes;
}

void StepLog::finish_step(Nanos now, std::uint64_t epoch) {
  current_.end = now;
  current_.duration = now - step_begin_;
  current_.epoch = epoch;
  expected_ = current_.tensors == previous_tensors_ ? current_.tensors : 0;
  previous_tensors_ = current_.tensors;
  // After this many tensors without a name, named ones are no longer expected.
  previous_named_ = current_.named && unnamed_in_a_row_ <= kUnnamedInARow;
  if (step_begin_ != 0) {  // the beginning of the first step is unknown
    last_ = current_;
    const std::lock_guard lock(mutex_);
    if (done_.size() == kKept) done_.pop_front();
    done_.push_back(current_);
    changed_.notify_all();
  }
  step_begin_ = now;
  current_ = {.index = current_.index + 1};
  seen_.clear();
}

std::vector<StepRecord> StepLog::read(Nanos deadline) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  changed_.wait_until(lock, until, [this] { return !done_.empty() || closed_; });
  std::vector<StepRecord> steps(done_.begin(), done_.end());
  done_.clear();
  return steps;
}

void StepLog::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool StepLog::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace hvdtune
