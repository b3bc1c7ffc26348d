#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

// Rank 0's checks of every rank that arrives, and its error messages. Both kinds of meeting call
// this (meet_on_host.h, rendezvous.h).

/// A rank's description of itself.
struct Attendee {
  int rank = 0;
  int size = 1;
  int pid = 0;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines.
  std::string agreement;
};

/// Why `comer` cannot be a rank of rank 0's job; empty if it can. `taken_by`: pid of the process
/// that arrived earlier with the same rank; 0 = none.
std::string objection_to(const Attendee& comer, const Attendee& rank0, int taken_by);

/// The message that names the missing ranks. `present`: by rank.
std::string absence_text(const std::vector<bool>& present, Nanos timeout);

/// The other ranks' message if rank 0 is missing.
std::string rank0_absence_text(Nanos timeout);
/// Whether an error of rank 0 is one of these two messages.
bool is_absence_text(const std::string& text);

}  // namespace hvdtune
