#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <thread>

#include "engine/job/job.h"
#include "engine/operation/operation.h"
#include "engine/submission/table_lock.h"

namespace hvdtune {

/// This rank's messages to the coordinator, which reads them in the order of push(). Messages for
/// which the ring has no room wait here.
class Announcements {
 public:
  /// `job` outlives it.
  explicit Announcements(const Job& job)
      : job_(job), messages_(job.arena.announcements(job.rank)) {}

  /// Does not ring the doorbell, unless the message ring is full. Never blocks.
  void push(const TableLock& lock, std::string_view bytes);
  /// Sends waiting messages, as far as there is room; returns whether any was sent.
  bool flush(const TableLock& lock);
  [[nodiscard]] bool waiting(const TableLock& /*held*/) const { return !backlog_.empty(); }
  /// The operation's slot was removed: if its announcement still waits here, it is sent with the
  /// description instead.
  void describe(const TableLock& lock, const Operation& operation);

  /// Rings the coordinator's doorbell, unless this thread holds its rings back.
  void ring(const TableLock& lock, Urgency urgency);
  /// The calling thread holds its rings back from now on. False if another one does.
  bool hold_rings(const TableLock& lock);
  /// Ends this; returns the most urgent ring held back.
  Urgency release_rings(const TableLock& lock);

 private:
  const Job& job_;
  MessageRing messages_;
  std::deque<std::string> backlog_;
  std::thread::id ring_holder_;         // the thread whose rings are held back, or none
  Urgency held_ring_ = Urgency::kNone;  // the most urgent of them
};

}  // namespace hvdtune
