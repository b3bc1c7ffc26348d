#include "engine/watch/stack_service.h"

#include <chrono>
#include <optional>

#include "base/utf8.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

constexpr char kAsk = 's';
constexpr char kAnswer = 'S';
constexpr std::size_t kLongest = 32 << 10;

std::string message_of(char type, std::uint64_t question, std::string_view text) {
  wire::Encoder out;
  out.put(type).put(question).put(text);
  return out.take();
}

}  // namespace

StackService::StackService(int rank, int size, Send send)
    : rank_(rank), size_(size), send_(std::move(send)), own_([this] { answer(); }) {}

/// Runs on the query's thread.
void StackService::answer() {
  std::optional<StackQuery::Answer> answer = own_.take();
  if (!answer) return;
  if (rank_ == 0) return arrived(0, answer->question, std::move(answer->text));
  answer->text.resize(utf8_prefix(answer->text, kLongest).size());
  send_(0, message_of(kAnswer, answer->question, answer->text));
}

void StackService::arrived(int rank, std::uint64_t question, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    if (question != question_) return;  // its asker waits no longer
    answers_[rank] = std::move(text);
  }
  changed_.notify_all();
}

bool StackService::receive(int from, std::string_view message) {
  if (message.empty()) return false;
  const char type = message.front();
  if (type != (rank_ == 0 ? kAnswer : kAsk)) return false;
  try {
    wire::Decoder in(message);
    in.get<char>();
    const auto question = in.get<std::uint64_t>();
    std::string text = in.get_string();
    in.finish();
    if (rank_ != 0) {
      own_.start(question);
    } else {
      arrived(from, question, std::move(text));
    }
  } catch (const wire::DecodeError&) {
    return true;  // still a StackService's message
  }
  return true;
}

std::map<int, std::string> StackService::ask(const std::vector<int>& ranks, Nanos deadline) {
  const std::lock_guard one_at_a_time(asking_);
  std::uint64_t question = 0;
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
    question = ++question_;
  }
  std::size_t asked = 0;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) continue;
    const bool goes_out =
        rank == rank_ ? own_.start(question) : send_(rank, message_of(kAsk, question, {}));
    if (goes_out) ++asked;
  }
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  changed_.wait_until(lock, until, [&] { return answers_.size() >= asked; });
  return answers_;
}

}  // namespace hvdtune
