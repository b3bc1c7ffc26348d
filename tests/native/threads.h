#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace hvdtune::testing {

/// Threads that run one body after another. To start threads for each would take longer than what
/// they do, under the thread sanitizer most of all.
class Crew {
 public:
  explicit Crew(int count) : failures_(static_cast<std::size_t>(count)) {
    for (int index = 0; index < count; ++index) {
      threads_.emplace_back([this, index] { serve(index); });
    }
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    begins_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Runs body(0) … body(count - 1), each on its thread, and waits for all of them. Throws Failure
  /// with everything that went wrong.
  void run(const std::function<void(int)>& body) {
    std::unique_lock lock(mutex_);
    body_ = &body;
    working_ = threads_.size();
    ++round_;
    begins_.notify_all();
    ends_.wait(lock, [this] { return working_ == 0; });
    std::string all;
    for (std::size_t index = 0; index < failures_.size(); ++index) {
      if (failures_[index].empty()) continue;
      all += "\n  thread " + std::to_string(index) + ": " + failures_[index];
      failures_[index].clear();
    }
    if (!all.empty()) throw Failure(all);
  }

 private:
  void serve(int index) {
    std::unique_lock lock(mutex_);
    for (std::uint64_t done = 0;; ++done) {
      begins_.wait(lock, [&] { return over_ || round_ > done; });
      if (over_) return;
      const auto& body = *body_;
      lock.unlock();
      std::string failure;
      try {
        body(index);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      failures_[static_cast<std::size_t>(index)] = failure;
      if (--working_ == 0) ends_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable begins_;
  std::condition_variable ends_;
  const std::function<void(int)>* body_ = nullptr;  // of the round
  std::uint64_t round_ = 0;
  std::size_t working_ = 0;
  bool over_ = false;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;  // last: they use the others
};

/// Runs body(0) … body(count - 1), each on a new thread, and waits for all of them. Throws Failure
/// with everything that went wrong.
inline void run_threads(int count, const std::function<void(int)>& body) { Crew(count).run(body); }

}  // namespace hvdtune::testing
