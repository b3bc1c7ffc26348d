#include "engine/watch/job_answers.h"

#include <charconv>
#include <chrono>
#include <thread>

#include "observe/trace/trace_format.h"

namespace hvdtune {
namespace {

// How long ranks may take to send their stacks.
constexpr Nanos kStackPatience = 2 * kSecond;
// How long the status waits for the coordinator to read its messages: batches may take long.
constexpr Nanos kLookPatience = 20 * kMillisecond;
constexpr Nanos kLookPoll = 100 * kMicrosecond;

}  // namespace

/// Announcements that complete nothing wake nobody. For the status, this makes the coordinator read
/// them, unless it is busy.
void JobAnswers::look_now() {
  const std::uint64_t looks = coordination_.looks();
  // A turn that is under way may have begun before the latest announcements arrived.
  const std::uint64_t enough = looks + (looks % 2 == 0 ? 2 : 3);
  job_.doorbell.ring(Urgency::kUrgent);
  const Nanos deadline = monotonic_now() + kLookPatience;
  while (coordination_.looks() < enough && !submissions_.over() && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookPoll));
  }
}

std::string JobAnswers::status() {
  look_now();
  const wire::RuntimeSettings now = submissions_.settings();
  std::string text = "{";
  if (!identity_.empty()) text += identity_ + ",";
  text += status_.json(monotonic_now()) + ",\"epoch\":" + std::to_string(now.epoch) +
          ",\"settings\":{\"fusion_threshold\":" + std::to_string(now.fusion_threshold) +
          ",\"cycle_time_us\":" + std::to_string(now.cycle_time / kMicrosecond) +
          ",\"chunk_size\":" + std::to_string(now.chunk_size) +
          ",\"one_shot_limit\":" + std::to_string(now.one_shot_limit) + "},\"ranks\":[";
  for (int rank = 0; rank < job_.size; ++rank) {
    const PeerInfo& peer = job_.session.peers[static_cast<std::size_t>(rank)];
    text += std::string(rank > 0 ? "," : "") + "{\"host\":\"";
    append_json_escaped(text, peer.hostname);
    text += "\",\"pid\":" + std::to_string(peer.pid) + "}";
  }
  return text + "]}";
}

void JobAnswers::serve(const std::string& name, std::string identity,
                       std::function<std::string(std::string_view)> command) {
  identity_ = std::move(identity);
  command_ = std::move(command);
  server_.emplace(name, [this](std::string_view question) { return answer(question); });
}

std::string JobAnswers::answer(std::string_view question) {
  if (question == "status") return status();
  constexpr std::string_view kStacks = "stacks";
  if (question.starts_with(kStacks)) return stacks_text(question.substr(kStacks.size()));
  // Only commands use the interpreter: other questions must not make training wait for it.
  constexpr std::string_view kCommands = "timeline-";
  if (command_ && question.starts_with(kCommands)) return command_(question);
  throw Error(ErrorKind::kInvalidArgument,
              "the job does not know this question: it runs another version of hvdtune");
}

/// `which`: a rank, or nothing for all.
std::string JobAnswers::stacks_text(std::string_view which) {
  while (which.starts_with(' ')) which.remove_prefix(1);
  std::vector<int> ranks;
  if (which.empty()) {
    for (int rank = 0; rank < job_.size; ++rank) ranks.push_back(rank);
  } else {
    int rank = -1;
    const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), rank);
    if (error != std::errc{} || end != which.data() + which.size() || rank < 0 ||
        rank >= job_.size) {
      throw Error(ErrorKind::kInvalidArgument, "there is no rank " + std::string(which) +
                                                   "; the job's are 0 to " +
                                                   std::to_string(job_.size - 1));
    }
    ranks.push_back(rank);
  }
  const auto found = stacks_.ask(ranks, monotonic_now() + kStackPatience);
  std::string text;
  for (const int rank : ranks) {
    const std::string state = job_.process_state(rank);
    text += "Rank " + std::to_string(rank) + ": " + job_.where(rank) +
            (state.empty() ? "" : ", process " + state) + "\n";
    const auto stack = found.find(rank);
    if (stack == found.end()) {
      text +=
          "no Python stack: the process has not answered within 2 s; it is stopped, or native "
          "code holds the interpreter's lock\n";
    } else {
      text += stack->second;
      if (!text.ends_with('\n')) text += '\n';
    }
  }
  return text;
}

}  // namespace hvdtune
