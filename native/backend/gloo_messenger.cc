// The module that links Gloo (transport/messengers/gloo.h). Built if Gloo is found.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "transport/messengers/gloo.h"

namespace hvdtune {
namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(Nanos time) { return milliseconds(time / kMillisecond); }

/// A store without a server. Every member sets the same number of values, in the same order, under
/// keys that end in its own number, and can read the values of all members.
class GatheredStore final : public ::gloo::rendezvous::Store {
 public:
  explicit GatheredStore(const GlooGroup& group) : group_(group) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::string number = std::to_string(group_.index);
    const std::string prefix = key.substr(0, key.size() - number.size());
    const auto all = group_.gather(std::string(data.begin(), data.end()));
    for (std::size_t member = 0; member < all.size(); ++member) {
      values_[prefix + std::to_string(member)] = all[member];
    }
  }
  std::vector<char> get(const std::string& key) override {
    const std::string& value = values_.at(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>&) override {}

 private:
  const GlooGroup& group_;
  std::map<std::string, std::string> values_;
};

/// Gloo offers only waits, no tests, and a wait that times out breaks the group. So a thread waits
/// for one message after the other, and the caller only reads what the thread has recorded.
class GlooMessenger final : public Messenger {
 public:
  explicit GlooMessenger(const GlooGroup& group)
      : timeout_(to_milliseconds(group.timeout)),
        sent_(static_cast<std::size_t>(group.size)),
        received_(static_cast<std::size_t>(group.size)),
        context_(std::make_shared<::gloo::rendezvous::Context>(group.index, group.size)) {
    ::gloo::transport::tcp::attr where;
    if (!group.interface.empty()) {
      where.iface = group.interface;
    } else if (!group.address.empty()) {
      where.hostname = group.address;
    } else {
      where.iface = "lo";
      where.ai_family = AF_INET;
    }
    device_ = ::gloo::transport::tcp::CreateDevice(where);
    context_->setTimeout(timeout_);
    GatheredStore store(group);
    context_->connectFullMesh(store, device_);
    thread_ = std::thread([this] { run(); });
  }

  ~GlooMessenger() override {
    abandon(true);
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void send(std::size_t batch, std::size_t member, const std::byte* data,
            std::size_t bytes) override {
    // start() serves both directions.
    start(batch, member, const_cast<std::byte*>(data), bytes, false, sent_[member]++);
  }

  void receive(std::size_t batch, std::size_t member, std::byte* data, std::size_t bytes) override {
    start(batch, member, data, bytes, true, received_[member]++);
  }

  bool test(std::size_t batch) override {
    const std::lock_guard lock(mutex_);
    if (!problem_.empty()) throw Error(ErrorKind::kAborted, "Gloo failed: " + problem_);
    seen_ = finished_;
    return left_[batch] == 0;
  }

  void doze() override {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, milliseconds(20), [this] { return finished_ != seen_; });
  }

  [[nodiscard]] std::vector<std::size_t> missing(std::size_t batch) const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t> found;
    for (const bool receives : {true, false}) {
      for (const Message& message : messages_) {
        if (message.batch != batch || message.receives != receives) continue;
        bool known = false;
        for (const std::size_t member : found) known = known || member == message.member;
        if (!known) found.push_back(message.member);
      }
      if (!found.empty()) break;
    }
    return found;
  }

  bool abandon(bool) override {
    std::unique_lock lock(mutex_);
    if (messages_.empty()) return true;
    if (problem_.empty()) problem_ = "it was given up";
    abandoned_ = true;
    // The thread may be about to wait: an abort before the wait has no effect.
    while (!messages_.empty()) {
      Message& first = messages_.front();
      first.receives ? first.buffer->abortWaitRecv() : first.buffer->abortWaitSend();
      done_.wait_for(lock, milliseconds(5));
    }
    lock.unlock();
    // Nothing reads or writes the memory once no connection is left.
    context_->closeConnections();
    return true;
  }

 private:
  struct Message {
    std::size_t batch;
    std::size_t member;
    bool receives;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
  };

  void start(std::size_t batch, std::size_t member, std::byte* data, std::size_t bytes,
             bool receives, std::uint64_t slot) {
    try {
      auto buffer = context_->createUnboundBuffer(data, bytes);
      if (receives) {
        buffer->recv(static_cast<int>(member), slot);
      } else {
        buffer->send(static_cast<int>(member), slot);
      }
      {
        const std::lock_guard lock(mutex_);
        messages_.push_back({batch, member, receives, std::move(buffer)});
        ++left_[batch];
      }
      changed_.notify_one();
    } catch (const std::exception& failure) {
      throw Error(ErrorKind::kAborted, std::string("Gloo failed: ") + failure.what());
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !messages_.empty(); });
      if (messages_.empty()) return;
      Message& first = messages_.front();
      std::string problem;
      if (!abandoned_) {
        lock.unlock();
        try {
          const bool completed =
              first.receives ? first.buffer->waitRecv(timeout_) : first.buffer->waitSend(timeout_);
          if (!completed) problem = "it was given up";
        } catch (const std::exception& failure) {
          problem = failure.what();
        }
        lock.lock();
      }
      if (problem_.empty()) problem_ = std::move(problem);
      --left_[first.batch];
      ++finished_;
      // The message's memory may be reused now, or, if it was abandoned, once abandon() has closed
      // the connections.
      messages_.pop_front();
      done_.notify_all();
    }
  }

  milliseconds timeout_;
  std::vector<std::uint64_t> sent_;  // messages so far, by member
  std::vector<std::uint64_t> received_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;
  std::shared_ptr<::gloo::transport::Device> device_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for the thread
  std::condition_variable done_;     // for the caller
  std::deque<Message> messages_;     // under way; the first is being waited for
  std::array<std::size_t, kBatches> left_{};
  std::uint64_t finished_ = 0;  // messages, and how many of them the last test() knew of
  std::uint64_t seen_ = 0;
  std::string problem_;
  bool abandoned_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace hvdtune

extern "C" __attribute__((visibility("default"))) hvdtune::Messenger* hvdtune_gloo_connect(
    const hvdtune::GlooGroup& group, std::string& problem) {
  try {
    return new hvdtune::GlooMessenger(group);
  } catch (const std::exception& failure) {
    problem = failure.what();
    return nullptr;
  }
}
