#include "engine/drive/progress.h"

#include <algorithm>

namespace hvdtune {

bool Progress::make(const DriveLock& lock) noexcept {
  try {
    return try_make(lock);
  } catch (const std::exception& problem) {
    job_.arena.abort("rank " + std::to_string(job_.rank) + " cannot go on: " + problem.what());
    return false;
  }
}

bool Progress::try_make(const DriveLock& lock) {
  const bool finished = gpu_batches_.finish_done(lock);
  if (submissions_.over()) return finished;
  if (job_.arena.aborted()) {
    reader_.end_job(lock, job_.arena.abort_status());
    return true;
  }
  bool worked = flush_backlogs(lock) || finished;
  // Nobody reads entries after the end.
  if (coordination_ != nullptr && job_.arena.ended().load() == 0) {
    worked |= coordination_->coordinate(lock);
  }
  worked |= reader_.read(lock);
  return worked;
}

/// Sends messages that found their ring full, and a requested stack.
bool Progress::flush_backlogs(const DriveLock& lock) {
  bool sent = false;
  if (const auto stack = stack_query_.take()) {
    submissions_.announce(wire::encode_announce_stack(stack->question, stack->text));
    sent = true;
  }
  sent |= submissions_.flush(lock);
  if (sent) job_.coordinator_bell.ring(Urgency::kUrgent);
  if (coordination_ != nullptr) sent |= coordination_->flush(lock);
  return sent;
}

Nanos Progress::next_deadline(const DriveLock& lock) const {
  if (submissions_.over()) return kForever;
  const Nanos deadline = coordination_ != nullptr ? coordination_->deadline(lock) : kForever;
  if (!submissions_.has_backlog(lock)) return deadline;
  return std::min(deadline, monotonic_now() + kRetryFullRing);
}

}  // namespace hvdtune
