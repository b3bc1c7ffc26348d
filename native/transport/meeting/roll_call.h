#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

// What rank 0 compares whenever a rank comes, and how it says what is wrong. Both kinds of meeting
// call this (meet_on_host.h, rendezvous.h).

/// What a rank says of itself.
struct Attendee {
  int rank = 0;
  int size = 1;
  int pid = 0;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines.
  std::string agreement;
};

/// Why `comer` cannot be a rank of rank 0's job; empty when it can. `taken_by`: the pid of who came
/// with its rank before; 0 = nobody.
std::string objection_to(const Attendee& comer, const Attendee& rank0, int taken_by);

/// Who has not come. `present`: by rank.
std::string absence_text(const std::vector<bool>& present, Nanos timeout);

/// What the others say when rank 0 has not come.
std::string rank0_absence_text(Nanos timeout);
/// Whether an error of rank 0's is one of these two.
bool is_absence_text(const std::string& text);

}  // namespace hvdtune
