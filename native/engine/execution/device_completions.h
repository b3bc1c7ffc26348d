#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/execution/device_batch.h"

namespace hvdtune {

/// Watches batches that GPUs work on: one thread checks whether they are done, whether their
/// communicator has failed, and whether the job is over, so that no other thread has to wait for a
/// GPU. All methods may be called from any thread.
class DeviceCompletions {
 public:
  struct Hooks {
    /// Some batches are done: take() returns them. This object's thread calls all hooks.
    std::function<void()> done;
    /// Why the job is over, if it is.
    std::function<std::optional<std::string>()> aborted;
    /// The job cannot go on; afterwards aborted() says why.
    std::function<void(const std::string& why)> fail;
    /// A batch has been under way for `patience`, or for that much longer since the last call.
    std::function<void(const DeviceBatch& batch, Nanos waited)> slow;
    /// Aborts all communicators, including those whose batches are not known here. If not set, only
    /// the communicators of known batches are aborted.
    std::function<void()> abort = {};
    /// The batch of the last slow() is under way no more; called before done(). May be empty.
    std::function<void()> slow_over = {};
  };

  /// `patience`: 0 = without limit.
  DeviceCompletions(Hooks hooks, Nanos patience);
  ~DeviceCompletions() { stop(); }
  DeviceCompletions(const DeviceCompletions&) = delete;
  DeviceCompletions& operator=(const DeviceCompletions&) = delete;

  void add(std::unique_ptr<DeviceBatch> batch);

  /// Whether take() would return anything: one load.
  [[nodiscard]] bool any_done() const { return any_done_.load(std::memory_order_acquire); }
  /// Batches that are done, in the order of their ends, with their status.
  std::vector<std::unique_ptr<DeviceBatch>> take();

  /// Ends the thread; no add() may follow. Batches under way have kGrace to end; then they count as
  /// failed. take() returns the last of them. A second call does nothing.
  void stop();

  /// Waits until nothing is under way (take() may still have batches to return); false at the
  /// deadline.
  bool wait_until_idle(Nanos deadline);

  /// How long batches under way may take after the job is over.
  static constexpr Nanos kGrace = 5 * kSecond;

 private:
  using Batches = std::vector<std::unique_ptr<DeviceBatch>>;

  void run();
  void look(Batches& batches, bool closely);
  static std::string failure_of(const Batches& batches);
  void report_slow(const Batches& batches);
  void give_up(Batches& batches, const std::string& why);
  void hand_over(Batches finished);

  const Hooks hooks_;
  const Nanos patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Batches added_;
  Batches done_;
  std::size_t under_way_ = 0;
  bool stop_ = false;
  std::atomic<bool> any_done_{false};
  std::thread thread_;
};

}  // namespace hvdtune
