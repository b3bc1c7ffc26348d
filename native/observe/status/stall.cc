#include "observe/status/stall.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace hvdtune {
namespace {

constexpr std::size_t kNamesShown = 6;
// So that a report fits on one screen.
constexpr std::size_t kGroupsShown = 6;
constexpr std::size_t kStacksShown = 3;
constexpr std::size_t kStackLines = 16;
// How core/observation/stacks.py begins each thread.
constexpr std::string_view kThreadHeading = " (most recent call last):";

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

std::string count_text(std::size_t count, const char* one, const char* many) {
  return count == 1 ? one : std::to_string(count) + " " + many;
}

/// "tensor a" or "3 tensors (a, b, c)"; "tensors (a, b, c, d, e, f and 112 more)".
std::string tensors_text(const std::set<std::string_view>& names) {
  if (names.size() == 1) return "tensor " + std::string(*names.begin());
  std::string text = std::to_string(names.size()) + " tensors (";
  std::size_t shown = 0;
  for (const std::string_view name : names) {
    if (shown == kNamesShown) {
      text += " and " + std::to_string(names.size() - shown) + " more";
      break;
    }
    if (shown++ > 0) text += ", ";
    text += name;
  }
  return text + ")";
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
}

/// One line for all tensors with the same waiting ranks and the same missing ranks.
std::string groups_text(const std::vector<StalledTensor>& stalled) {
  struct Group {
    std::set<std::string_view> names;
    Nanos waiting = 0;
  };
  std::map<std::pair<std::vector<int>, std::vector<int>>, Group> groups;
  for (const StalledTensor& tensor : stalled) {
    std::vector<int> missing = tensor.missing_ranks;
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    Group& group = groups[{tensor.waiting_ranks, std::move(missing)}];
    group.names.insert(tensor.name);
    group.waiting = std::max(group.waiting, tensor.waiting);
  }
  std::string text;
  std::size_t shown = 0;
  for (const auto& [who, group] : groups) {
    if (shown++ == kGroupsShown) {
      return text + "\nand " +
             count_text(groups.size() - kGroupsShown, "one more such group", "more such groups") +
             ".";
    }
    const auto& [waiting, missing] = who;
    std::string line = waiting.empty() ? "all others wait" : ranks_text(waiting);
    if (!waiting.empty()) line += waiting.size() == 1 ? " waits" : " wait";
    line.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(line.front())));
    text += "\n" + line + " for " + tensors_text(group.names) + " since " +
            wait_text(group.waiting) + "; missing: " + ranks_text(missing) + ".";
  }
  return text;
}

/// Which of several missing ranks cause the stall, because they do not wait themselves; "" if it is
/// obvious.
std::string first_to_look_at(const std::vector<StalledTensor>& stalled) {
  std::set<int> missing;
  std::set<int> waiting;
  for (const StalledTensor& tensor : stalled) {
    missing.insert(tensor.missing_ranks.begin(), tensor.missing_ranks.end());
    waiting.insert(tensor.waiting_ranks.begin(), tensor.waiting_ranks.end());
  }
  std::vector<int> found;
  std::set_difference(missing.begin(), missing.end(), waiting.begin(), waiting.end(),
                      std::back_inserter(found));
  if (found.empty() || found.size() == missing.size()) return "";
  return "\nLook at " + ranks_text(found) +
         (found.size() == 1 ? " first: it waits" : " first: they wait") + " for nobody.";
}

/// The innermost frames of the first thread, which is the main one.
std::vector<std::string_view> shown_lines(std::string_view stack) {
  std::vector<std::string_view> lines;
  std::size_t threads = 0;
  while (!stack.empty()) {
    const std::size_t end = std::min(stack.find('\n'), stack.size());
    const std::string_view line = stack.substr(0, end);
    stack.remove_prefix(std::min(end + 1, stack.size()));
    if (line.ends_with(kThreadHeading) && ++threads > 1) break;
    lines.push_back(line);
  }
  if (lines.size() > kStackLines) {
    const bool headed = threads > 0;
    const auto first = lines.begin() + (headed ? 1 : 0);
    lines.erase(first, lines.end() - static_cast<std::ptrdiff_t>(kStackLines));
    lines.insert(lines.begin() + (headed ? 1 : 0), "  ...");
  }
  return lines;
}

std::string state_text(const RankState& state) {
  std::string text = "Rank " + std::to_string(state.rank) + ":";
  if (!state.host.empty()) text += " host " + state.host + ",";
  if (state.pid >= 0) text += " pid " + std::to_string(state.pid) + ",";
  if (!state.process_state.empty()) text += " process " + state.process_state + ",";
  if (state.last_operation.empty()) return text + " has submitted nothing yet";
  text += " last submitted " + state.last_operation;
  if (state.since_last >= 0) text += " " + wait_text(state.since_last) + " ago";
  return text;
}

std::string states_text(const std::vector<RankState>& states) {
  std::string text;
  std::map<std::string_view, int> shown;  // stack → its rank
  for (const RankState& state : states) {
    text += "\n" + state_text(state);
    if (state.python_stack.empty()) {
      text += "; its Python stack is not known";
    } else if (const auto same = shown.find(state.python_stack); same != shown.end()) {
      text += "; its Python stack is that of rank " + std::to_string(same->second);
    } else if (shown.size() == kStacksShown) {
      text += "; its Python stack: hvdtune stacks --rank " + std::to_string(state.rank);
    } else {
      shown[state.python_stack] = state.rank;
      text += "; its Python stack:";
      for (const std::string_view line : shown_lines(state.python_stack)) {
        text += "\n    ";
        text += line;
      }
    }
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
  text += groups_text(stalled) + '\n' + missing_ranks_text(missing) + first_to_look_at(stalled) +
          states_text(states);
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
                         double shutdown_seconds, bool starting) {
  return report(
      "One or more tensors were submitted by only a subset of ranks, which have waited for the "
      "others for more than " +
          number_text(warning_seconds) +
          " seconds. Either ranks submit different tensors, which is a deadlock, or the missing "
          "ranks are slow or stuck." +
          (starting ? " No training step has ended yet: it may be a one-time start (imports, "
                      "compilation, the first batch of data), which ends by itself."
                    : ""),
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

std::string silence_report(int rank, std::vector<std::string> names, Nanos waited,
                           const RankState& coordinator, bool ends) {
  std::string text = "Rank " + std::to_string(coordinator.rank) +
                     ", which decides what the ranks do next, does not go on; rank " +
                     std::to_string(rank) + " waits";
  if (!names.empty()) text += " for " + tensors_text({names.begin(), names.end()});
  text +=
      " since " + wait_text(waited) +
      ". Its process is stopped, gets no CPU time, or waits for other ranks in an operation.\n" +
      "Rank " + std::to_string(coordinator.rank) + ":";
  if (!coordinator.host.empty()) text += " host " + coordinator.host + ",";
  text += " pid " + std::to_string(coordinator.pid);
  if (!coordinator.process_state.empty()) text += ", process " + coordinator.process_state;
  if (ends) {
    text +=
        "\nThat is more than the limit set by HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: the job is "
        "shut down.";
  }
  return text;
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
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
