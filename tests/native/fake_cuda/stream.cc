#include "stream.h"

#include <utility>

namespace fake_cuda {

void Mark::reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Mark::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Mark::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

std::chrono::steady_clock::time_point Mark::when() const {
  const std::lock_guard lock(mutex_);
  return when_;
}

struct Stream::Queue {
  struct Entry {
    Task task;
    bool always;  ///< also where the context is ruined
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  bool ending = false;
};

std::shared_ptr<Stream> Stream::start(std::shared_ptr<Context> context, bool blocking) {
  return std::shared_ptr<Stream>(new Stream(std::move(context), blocking));
}

Stream::Stream(std::shared_ptr<Context> context, bool blocking)
    : context_(std::move(context)), blocking_(blocking), queue_(std::make_shared<Queue>()) {
  // Nobody joins it: a stream that is destroyed goes on with what it has.
  std::thread([queue = queue_, context = context_] { work(queue, context); }).detach();
}

Stream::~Stream() {
  const std::lock_guard lock(queue_->mutex);
  queue_->ending = true;
  queue_->changed.notify_all();
}

void Stream::work(const std::shared_ptr<Queue>& queue, const std::shared_ptr<Context>& context) {
  while (true) {
    Queue::Entry entry;
    {
      std::unique_lock lock(queue->mutex);
      queue->changed.wait(lock, [&] { return queue->ending || !queue->entries.empty(); });
      if (queue->entries.empty()) return;
      entry = std::move(queue->entries.front());
      queue->entries.pop_front();
    }
    if (!entry.always && context->failed != CudaResult::kSuccess) continue;
    const CudaResult result = entry.task();
    CudaResult none = CudaResult::kSuccess;
    if (result != CudaResult::kSuccess) context->failed.compare_exchange_strong(none, result);
  }
}

void Stream::push(Task task, bool always) {
  const std::lock_guard lock(queue_->mutex);
  queue_->entries.push_back({std::move(task), always});
  queue_->changed.notify_all();
}

std::shared_ptr<Mark> Stream::mark() {
  auto mark = std::make_shared<Mark>();
  push(
      [mark] {
        mark->reach();
        return CudaResult::kSuccess;
      },
      true);
  return mark;
}

void Stream::enqueue(Task task) {
  if (capturing) return;
  std::vector<std::shared_ptr<Stream>> others;
  {
    const std::lock_guard lock(context_->mutex);
    if (context_->legacy.get() == this) {
      for (const auto& weak : context_->blocking) {
        if (auto other = weak.lock(); other && other.get() != this) others.push_back(other);
      }
    } else if (blocking_ && context_->legacy) {
      others.push_back(context_->legacy);
    }
  }
  for (const auto& other : others) {
    push(
        [mark = other->mark()] {
          mark->wait();
          return CudaResult::kSuccess;
        },
        true);
  }
  push(std::move(task), false);
}

}  // namespace fake_cuda
