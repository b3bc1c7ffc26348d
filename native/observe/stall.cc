#include "observe/stall.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

namespace hvdtune {
namespace {

constexpr std::size_t kNamesShown = 6;

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

/// Tenths of a second below 10 s, whole seconds above.
std::string wait_text(Nanos wait) {
  const double seconds = static_cast<double>(wait) / kSecond;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text.data();
}

bool longer_than(Nanos wait, double seconds) {
  return static_cast<double>(wait) > seconds * static_cast<double>(kSecond);
}

bool over_limit(Nanos wait, double shutdown_seconds) {
  return shutdown_seconds > 0 && longer_than(wait, shutdown_seconds);
}

struct MissingRank {
  std::set<std::string_view> names;  // sorted
  bool over_limit = false;
};

std::string missing_ranks_text(const std::map<int, MissingRank>& missing) {
  std::string text = "Missing ranks:";
  for (const auto& [rank, entry] : missing) {
    text += "\n" + std::to_string(rank) + (entry.over_limit ? "!" : "") + ": [";
    std::size_t shown = 0;
    for (const std::string_view name : entry.names) {
      if (shown == kNamesShown) {
        text += " ...";
        break;
      }
      if (shown++ > 0) text += ", ";
      text += name;
    }
    text += ']';
  }
  return text;
}

std::string state_text(const RankState& state) {
  std::string text = "Rank " + std::to_string(state.rank) + ":";
  if (!state.host.empty()) text += " host " + state.host + ",";
  if (state.pid >= 0) text += " pid " + std::to_string(state.pid) + ",";
  if (!state.process_state.empty()) text += " process " + state.process_state + ",";
  if (state.last_operation.empty()) {
    text += " has submitted nothing yet";
  } else {
    text += " last submitted " + state.last_operation;
    if (state.since_last >= 0) text += " " + wait_text(state.since_last) + " ago";
  }
  if (state.python_stack.empty()) return text + "; its Python stack is not known";
  text += "; its Python stack:";
  std::string_view stack = state.python_stack;
  while (!stack.empty()) {
    const std::size_t end = std::min(stack.find('\n'), stack.size());
    text += "\n    ";
    text += stack.substr(0, end);
    stack.remove_prefix(std::min(end + 1, stack.size()));
  }
  return text;
}

std::string report(std::string text, const std::vector<StalledTensor>& stalled,
                   const std::vector<RankState>& states, double shutdown_seconds) {
  std::map<int, MissingRank> missing;
  bool shutdown = false;
  for (const StalledTensor& tensor : stalled) {
    const bool over = over_limit(tensor.waiting, shutdown_seconds);
    shutdown |= over;
    for (const int rank : tensor.missing_ranks) {
      missing[rank].names.insert(tensor.name);
      missing[rank].over_limit |= over;
    }
  }
  text += '\n' + missing_ranks_text(missing);
  for (const RankState& state : states) text += "\n" + state_text(state);
  if (shutdown) {
    text += "\nRanks marked with \"!\" have been missing for more than " +
            number_text(shutdown_seconds) +
            " seconds, the limit set by HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: the job is shut down.";
  }
  return text;
}

}  // namespace

std::string stall_report(const std::vector<StalledTensor>& stalled,
                         const std::vector<RankState>& states, double warning_seconds,
                         double shutdown_seconds) {
  return report(
      "One or more tensors were submitted by only a subset of ranks, which have waited for the "
      "others for more than " +
          number_text(warning_seconds) +
          " seconds. Either ranks submit different tensors, which is a deadlock, or the missing "
          "ranks are slow or stuck.",
      stalled, states, shutdown_seconds);
}

std::string absence_report(const std::vector<StalledTensor>& stalled,
                           const std::vector<RankState>& states, double warning_seconds,
                           double shutdown_seconds) {
  return report(
      "One or more tensors were submitted by all ranks, but some ranks have not gone on in the "
      "operation for more than " +
          number_text(warning_seconds) +
          " seconds. Their processes are stopped, or get no CPU time or no memory.",
      stalled, states, shutdown_seconds);
}

std::string process_state_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  // "pid (name) S …": the name may hold anything, parentheses too.
  if (!std::getline(file, line)) return "gone";
  const std::size_t name_end = line.rfind(") ");
  switch (name_end == std::string::npos ? '?' : line[name_end + 2]) {
    case 'R':
      return "running";
    case 'S':
    case 'I':
      return "sleeping";
    case 'D':
      return "waiting for a device";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "dead";
    default:
      return "in an unknown state";
  }
}

}  // namespace hvdtune
