#pragma once

#include <string>

namespace hvdtune {

/// A rank's name in messages: "rank 2 (pid 77 on a)".
inline std::string name_of(int rank, int pid, const std::string& hostname) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + " on " + hostname + ")";
}

}  // namespace hvdtune
