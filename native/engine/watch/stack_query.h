#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace hvdtune {

/// Obtains this rank's Python stack on a thread of its own: that may have to wait for the
/// interpreter, which must not hold up the engine. Any thread may call any method.
class StackQuery {
 public:
  struct Answer {
    std::uint64_t question = 0;
    std::string text;
  };

  /// `on_answer` is called on the query's thread when there is something to take.
  explicit StackQuery(std::function<void()> on_answer) : on_answer_(std::move(on_answer)) {}
  ~StackQuery() { stop(); }
  StackQuery(const StackQuery&) = delete;
  StackQuery& operator=(const StackQuery&) = delete;

  void set_source(std::function<std::string()> source);
  /// Returns at once. `question`: the answer's number. While an earlier query is under way, this
  /// one comes behind it, in place of another that does: what the source says now may be older than
  /// the question. False, and nothing happens, without a source, after stop(), or when there can
  /// be no more threads.
  bool start(std::uint64_t question = 0);
  /// The newest answer, once.
  std::optional<Answer> take();
  /// Waits for a query under way, so the caller must not hold what the source needs (the
  /// interpreter's lock). A thread that asks for that lock while the interpreter is taken down
  /// crashes the process, hence no query may outlive the job.
  void stop();

 private:
  void run(std::uint64_t question);

  std::function<void()> on_answer_;
  std::mutex mutex_;
  std::function<std::string()> source_;
  std::optional<Answer> answer_;
  std::optional<std::uint64_t> next_;  // asked while a query is under way
  bool stopped_ = false;
  bool under_way_ = false;
  std::thread thread_;
};

}  // namespace hvdtune
