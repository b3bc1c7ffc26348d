#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "transport/doorbell.h"

namespace hvdtune {

/// Obtains this rank's Python stack on a thread of its own: that may have to wait for the
/// interpreter, which must not hold up the engine. Any thread may call any method.
class StackQuery {
 public:
  explicit StackQuery(Doorbell& doorbell) : doorbell_(doorbell) {}
  ~StackQuery() { stop(); }
  StackQuery(const StackQuery&) = delete;
  StackQuery& operator=(const StackQuery&) = delete;

  void set_source(std::function<std::string()> source);
  /// Returns at once; the doorbell rings when there is something to take. Nothing happens while an
  /// earlier query is under way, without a source, or after stop().
  void start();
  /// The answer, once.
  std::optional<std::string> take();
  /// Waits for a query under way, so the caller must not hold what the source needs (the
  /// interpreter's lock). A thread that asks for that lock while the interpreter is taken down
  /// crashes the process, hence no query may outlive the job.
  void stop();

 private:
  Doorbell& doorbell_;
  std::mutex mutex_;
  std::function<std::string()> source_;
  std::optional<std::string> answer_;
  bool stopped_ = false;
  std::atomic<bool> under_way_{false};
  std::thread thread_;
};

}  // namespace hvdtune
