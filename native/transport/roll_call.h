#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

// What rank 0 compares when the ranks of a job come together, by whichever transport, and how it
// says what is wrong.

/// What a rank says of itself.
struct Attendee {
  int rank = 0;
  int size = 1;
  int pid = 0;
  std::string hostname;
  /// Settings that must be equal on all ranks, as "NAME=value" lines.
  std::string agreement;
};

/// "rank 2 (pid 77 on a)".
std::string name_of(int rank, int pid, const std::string& hostname);

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
