#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <thread>

#include "engine/job/job.h"
#include "engine/operation/operation.h"
#include "engine/submission/table_lock.h"

namespace hvdtune {

/// What this rank tells the coordinator. It is read in the order of push(); what finds the ring
/// full waits here.
class Announcements {
 public:
  /// `job` outlives it.
  explicit Announcements(const Job& job)
      : job_(job), messages_(job.arena.announcements(job.rank)) {}

  /// Does not ring, unless the ring of messages is full. Never blocks.
  void push(const TableLock& lock, std::string_view bytes);
  /// Sends what waits here, as far as there is room; whether anything was sent.
  bool flush(const TableLock& lock);
  [[nodiscard]] bool waiting(const TableLock& /*held*/) const { return !backlog_.empty(); }
  /// The operation's slot is no more: if its announcement still waits here, it goes by the
  /// description.
  void describe(const TableLock& lock, const Operation& operation);

  /// Wakes the coordinator, unless this thread holds its rings back.
  void ring(const TableLock& lock, Urgency urgency);
  /// The calling thread holds its rings back from now on. False if another one does.
  bool hold_rings(const TableLock& lock);
  /// It does so no longer; the most urgent ring since then.
  Urgency release_rings(const TableLock& lock);

 private:
  const Job& job_;
  MessageRing messages_;
  std::deque<std::string> backlog_;
  std::thread::id ring_holder_;         // none, or whose rings are held back
  Urgency held_ring_ = Urgency::kNone;  // the most urgent of them
};

}  // namespace hvdtune
