#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

// The checks that a meeting's leader makes of every rank that arrives, and its error messages. Both
// kinds of meeting call this (meet_on_host.h, rendezvous.h). The leader is rank 0, or the lowest
// rank of another host.

/// A rank's description of itself.
struct Attendee {
  int rank = 0;
  int size = 1;
  int pid = 0;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines.
  std::string agreement;
};

/// Why `comer` cannot be a rank of the leader's job; empty if it can. `taken_by`: pid of the
/// process that arrived earlier with the same rank; 0 = none.
std::string objection_to(const Attendee& comer, const Attendee& leader, int taken_by);

/// The message that names the missing ranks. `present`: by rank.
std::string absence_text(const std::vector<bool>& present, Nanos timeout);

/// The other ranks' message if the leader is missing.
std::string leader_absence_text(int leader, Nanos timeout);
/// Whether an error of the leader is one of these two messages.
bool is_absence_text(const std::string& text);

}  // namespace hvdtune
