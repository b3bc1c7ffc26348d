#include "transport/meeting/roll_call.h"

#include <algorithm>

#include "transport/sockets/rank_name.h"

namespace hvdtune {
namespace {

// The setting that says how long to wait.
constexpr const char* kTimeoutSetting = "HOROVOD_START_TIMEOUT";

/// First differing line of two agreements, as "A there, B on rank 0".
std::string difference_of(const std::string& theirs, const std::string& mine) {
  std::size_t a = 0;
  std::size_t b = 0;
  while (a < theirs.size() || b < mine.size()) {
    const std::size_t a_end = std::min(theirs.find('\n', a), theirs.size());
    const std::size_t b_end = std::min(mine.find('\n', b), mine.size());
    const std::string their_line = theirs.substr(std::min(a, theirs.size()), a_end - a);
    const std::string my_line = mine.substr(std::min(b, mine.size()), b_end - b);
    if (their_line != my_line) return their_line + " there, " + my_line + " on rank 0";
    a = a_end + 1;
    b = b_end + 1;
  }
  return "different settings";
}

std::string seconds_text(Nanos time) {
  std::string text = std::to_string(static_cast<double>(time) / static_cast<double>(kSecond));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s (" + kTimeoutSetting + ")";
}

}  // namespace

std::string objection_to(const Attendee& comer, const Attendee& rank0, int taken_by) {
  const std::string who = name_of(comer.rank, comer.pid, comer.hostname);
  if (comer.size != rank0.size) {
    return who + " was started for a job of " + std::to_string(comer.size) +
           " processes, rank 0 for one of " + std::to_string(rank0.size);
  }
  if (comer.rank <= 0 || comer.rank >= rank0.size) {
    return who + " is not a rank of a job of " + std::to_string(rank0.size) + " processes";
  }
  if (taken_by != 0) {
    return who + " came twice: pid " + std::to_string(taken_by) + " has the same rank";
  }
  if (comer.agreement != rank0.agreement) {
    return who + " has settings that must be equal on all ranks: " +
           difference_of(comer.agreement, rank0.agreement);
  }
  return {};
}

std::string absence_text(const std::vector<bool>& present, Nanos timeout) {
  std::string ranks;
  for (std::size_t rank = 0; rank < present.size(); ++rank) {
    if (!present[rank]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return "not all processes of the job came within " + seconds_text(timeout) + ": missing " +
         (ranks.find(',') == std::string::npos ? "rank " : "ranks ") + ranks;
}

std::string rank0_absence_text(Nanos timeout) {
  return "rank 0 did not come within " + seconds_text(timeout);
}

bool is_absence_text(const std::string& text) {
  return text.find(kTimeoutSetting) != std::string::npos;
}

}  // namespace hvdtune
