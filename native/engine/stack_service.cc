#include "engine/stack_service.h"

#include <algorithm>
#include <chrono>

namespace hvdtune {
namespace {

constexpr char kAsk = 's';
constexpr char kAnswer = 'S';
constexpr std::size_t kLongest = 32 << 10;

}  // namespace

StackService::StackService(int rank, int size, Send send)
    : rank_(rank), size_(size), send_(std::move(send)), own_([this] { answer(); }) {}

/// On the query's thread.
void StackService::answer() {
  std::string text = own_.take().value_or("");
  if (rank_ == 0) return arrived(0, std::move(text));
  text.resize(std::min(text.size(), kLongest));
  send_(0, kAnswer + text);
}

void StackService::arrived(int rank, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    answers_[rank] = std::move(text);
  }
  changed_.notify_all();
}

bool StackService::receive(int from, std::string_view message) {
  if (message.empty()) return false;
  if (message.front() == kAsk && rank_ != 0) {
    own_.start();
    return true;
  }
  if (message.front() != kAnswer || rank_ != 0) return false;
  arrived(from, std::string(message.substr(1)));
  return true;
}

std::map<int, std::string> StackService::ask(const std::vector<int>& ranks, Nanos deadline) {
  const std::lock_guard one_at_a_time(asking_);
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  std::size_t asked = 0;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) continue;
    if (rank == rank_ ? own_.start() : send_(rank, std::string(1, kAsk))) ++asked;
  }
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  changed_.wait_until(lock, until, [&] { return answers_.size() >= asked; });
  return answers_;
}

}  // namespace hvdtune
