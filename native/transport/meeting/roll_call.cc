#include "transport/meeting/roll_call.h"

#include <algorithm>

#include "transport/sockets/rank_name.h"

namespace hvdtune {
namespace {

// The setting that says how long to wait.
constexpr const char* kTimeoutSetting = "HOROVOD_START_TIMEOUT";

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

/// First differing line of two agreements, as "A there, B on rank 0", if rank 0 leads.
std::string difference_of(const std::string& theirs, const std::string& mine, int leader) {
  std::size_t a = 0;
  std::size_t b = 0;
  while (a < theirs.size() || b < mine.size()) {
    const std::size_t a_end = std::min(theirs.find('\n', a), theirs.size());
    const std::size_t b_end = std::min(mine.find('\n', b), mine.size());
    const std::string their_line = theirs.substr(std::min(a, theirs.size()), a_end - a);
    const std::string my_line = mine.substr(std::min(b, mine.size()), b_end - b);
    if (their_line != my_line) {
      return their_line + " there, " + my_line + " on " + rank_text(leader);
    }
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

std::string objection_to(const Attendee& comer, const Attendee& leader, int taken_by) {
  const std::string who = name_of(comer.rank, comer.pid, comer.hostname);
  if (comer.size != leader.size) {
    return who + " was started for a job of " + std::to_string(comer.size) + " processes, " +
           rank_text(leader.rank) + " for one of " + std::to_string(leader.size);
  }
  if (comer.rank <= 0 || comer.rank >= leader.size) {
    return who + " is not a rank of a job of " + std::to_string(leader.size) + " processes";
  }
  if (taken_by != 0) {
    return who + " came twice: pid " + std::to_string(taken_by) + " has the same rank";
  }
  if (comer.agreement != leader.agreement) {
    return who + " has settings that must be equal on all ranks: " +
           difference_of(comer.agreement, leader.agreement, leader.rank);
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

std::string leader_absence_text(int leader, Nanos timeout) {
  return rank_text(leader) + " did not come within " + seconds_text(timeout);
}

bool is_absence_text(const std::string& text) {
  return text.find(kTimeoutSetting) != std::string::npos;
}

}  // namespace hvdtune
