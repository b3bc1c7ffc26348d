#include "engine/watch/stack_query.h"

#include <system_error>
#include <utility>

namespace hvdtune {

void StackQuery::set_source(std::function<std::string()> source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

bool StackQuery::start(std::uint64_t question) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || !source_) return false;
  if (under_way_) {
    next_ = question;
    return true;
  }
  if (thread_.joinable()) thread_.join();  // the last query's, which has ended
  under_way_ = true;
  try {
    thread_ = std::thread([this, question] { run(question); });
  } catch (const std::system_error&) {
    under_way_ = false;  // the report lacks this stack
    return false;
  }
  return true;
}

/// Runs on the query's thread.
void StackQuery::run(std::uint64_t question) {
  std::unique_lock lock(mutex_);
  for (bool more = true; more;) {
    const std::function<std::string()> source = source_;
    lock.unlock();
    std::string text = source();
    lock.lock();
    answer_ = Answer{question, std::move(text)};
    lock.unlock();
    on_answer_();
    lock.lock();
    more = next_.has_value() && !stopped_;
    question = std::exchange(next_, std::nullopt).value_or(0);
  }
  under_way_ = false;
}

std::optional<StackQuery::Answer> StackQuery::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

void StackQuery::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace hvdtune
