#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace hvdtune {

/// Obtains this rank's Python stack on a separate thread, which may have to wait for the
/// interpreter without delaying the engine. Any thread may call any method.
class StackQuery {
 public:
  struct Answer {
    std::uint64_t question = 0;
    std::string text;
  };

  /// The query's thread calls `on_answer` when there is an answer to take.
  explicit StackQuery(std::function<void()> on_answer) : on_answer_(std::move(on_answer)) {}
  ~StackQuery() { stop(); }
  StackQuery(const StackQuery&) = delete;
  StackQuery& operator=(const StackQuery&) = delete;

  void set_source(std::function<std::string()> source);
  /// Returns at once. `question`: the answer's number. If an earlier query is under way, this one
  /// runs after it, because the earlier answer may be older than the question; it replaces another
  /// waiting query. Returns false and does nothing without a source, after stop(), or if the system
  /// refuses a thread.
  bool start(std::uint64_t question = 0);
  /// The newest answer, once.
  std::optional<Answer> take();
  /// Waits for a query under way, so the caller must not hold the lock that the source needs (the
  /// interpreter's). A thread that takes that lock while the interpreter shuts down crashes the
  /// process, so no query may outlive the job.
  void stop();

 private:
  void run(std::uint64_t question);

  std::function<void()> on_answer_;
  std::mutex mutex_;
  std::function<std::string()> source_;
  std::optional<Answer> answer_;
  std::optional<std::uint64_t> next_;  // question asked during a query
  bool stopped_ = false;
  bool under_way_ = false;
  std::thread thread_;
};

}  // namespace hvdtune
