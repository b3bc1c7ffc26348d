#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"

namespace fake_cuda {

using hvdtune::CudaResult;

/// What a GPU does when it gets there. Anything but kSuccess ruins the context.
using Task = std::function<CudaResult()>;

/// A moment in a stream: reached, or not yet.
class Mark {
 public:
  void reach();
  [[nodiscard]] bool reached() const;
  void wait() const;
  /// When it was reached.
  [[nodiscard]] std::chrono::steady_clock::time_point when() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point when_;
};

class Stream;

/// A GPU's primary context, from the first to the last one who retains it.
struct Context {
  int device = 0;
  Memory* memory = nullptr;
  std::atomic<CudaResult> failed{CudaResult::kSuccess};  ///< sticky: what ruined it

  std::mutex mutex;
  std::shared_ptr<Stream> legacy;  ///< stream 0
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::vector<std::weak_ptr<Stream>> blocking;  ///< those that wait for stream 0, and it for them
};

/// A queue and the thread that works on it: everything enqueued is truly asynchronous.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// `blocking`: it and stream 0 wait for each other, once it is in Context::blocking.
  static std::shared_ptr<Stream> start(std::shared_ptr<Context> context, bool blocking);

  /// Everything that was enqueued is still done.
  ~Stream();

  [[nodiscard]] Context& context() const { return *context_; }

  /// With the order between stream 0 and blocking streams. Dropped while the stream is captured.
  void enqueue(Task task);
  /// A moment after all that is enqueued now.
  std::shared_ptr<Mark> mark();

  std::atomic<bool> capturing{false};

 private:
  struct Queue;

  Stream(std::shared_ptr<Context> context, bool blocking);
  void push(Task task, bool always);
  static void work(const std::shared_ptr<Queue>& queue, const std::shared_ptr<Context>& context);

  std::shared_ptr<Context> context_;
  bool blocking_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace fake_cuda
