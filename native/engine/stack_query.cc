#include "engine/stack_query.h"

#include <system_error>
#include <utility>

namespace hvdtune {

void StackQuery::set_source(std::function<std::string()> source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

bool StackQuery::start() {
  const std::lock_guard lock(mutex_);
  if (stopped_ || !source_ || under_way_) return false;
  if (thread_.joinable()) thread_.join();  // the last query's, which has ended
  under_way_ = true;
  try {
    thread_ = std::thread([this, source = source_] {
      std::string text = source();
      {
        const std::lock_guard answer_lock(mutex_);
        answer_ = std::move(text);
      }
      on_answer_();
      under_way_ = false;
    });
  } catch (const std::system_error&) {
    under_way_ = false;  // the report does without
    return false;
  }
  return true;
}

std::optional<std::string> StackQuery::take() {
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
