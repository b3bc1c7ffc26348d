#include "engine/submission/announcements.h"

#include <algorithm>
#include <utility>

namespace hvdtune {

void Announcements::push(const TableLock& /*held*/, std::string_view bytes) {
  if (backlog_.empty() && messages_.push(bytes)) return;
  // The coordinator is slow; progress sends the rest in order.
  backlog_.emplace_back(bytes);
  job_.coordinator_bell.ring(Urgency::kUrgent);
  job_.doorbell.wake_all();
}

bool Announcements::flush(const TableLock& /*held*/) {
  bool sent = false;
  while (!backlog_.empty() && messages_.push(backlog_.front())) {
    backlog_.pop_front();
    sent = true;
  }
  return sent;
}

void Announcements::describe(const TableLock& /*held*/, const Operation& operation) {
  for (std::string& bytes : backlog_) {
    if (!wire::is_announce_slot(bytes)) continue;
    const wire::Announce announce = wire::decode_announce(bytes);
    if (announce.ticket != operation.ticket) continue;
    bytes = wire::encode_announce_request(operation.request, announce.ticket, announce.time);
    return;
  }
}

void Announcements::ring(const TableLock& /*held*/, Urgency urgency) {
  if (urgency == Urgency::kNone) return;  // a later rank will ring
  if (ring_holder_ == std::this_thread::get_id()) {
    held_ring_ = std::max(held_ring_, urgency);
  } else {
    job_.coordinator_bell.ring(urgency);
  }
}

bool Announcements::hold_rings(const TableLock& /*held*/) {
  if (ring_holder_ != std::thread::id{}) return false;
  ring_holder_ = std::this_thread::get_id();
  return true;
}

Urgency Announcements::release_rings(const TableLock& /*held*/) {
  ring_holder_ = {};
  return std::exchange(held_ring_, Urgency::kNone);
}

}  // namespace hvdtune
