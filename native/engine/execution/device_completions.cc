#include "engine/execution/device_completions.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/threads/signals_blocked.h"

namespace hvdtune {
namespace {

// Pauses between two checks: short at first, as most batches take less than a millisecond, then
// longer.
constexpr Nanos kFirstPause = 20 * kMicrosecond;
constexpr Nanos kPause = 100 * kMicrosecond;
constexpr Nanos kLong = 20 * kMillisecond;  // under way; then:
constexpr Nanos kLongestPause = kMillisecond;
// Pause between two checks for a failure, which cost a little more.
constexpr Nanos kBetweenChecks = 5 * kMillisecond;

Nanos host_time(const DeviceBatch& batch, const SharedEvent& event, Nanos otherwise) {
  if (!event) return otherwise;
  const double before = batch.end->milliseconds_since(*event);
  return batch.ended - static_cast<Nanos>(before * static_cast<double>(kMillisecond));
}

}  // namespace

DeviceTimes times_of(const DeviceBatch& batch) {
  DeviceTimes times;
  times.end = batch.ended;
  times.begin = std::max(host_time(batch, batch.begin, batch.launched), batch.launched);
  times.packed = std::max(host_time(batch, batch.packed, times.begin), times.begin);
  times.unpacking = std::max(host_time(batch, batch.unpacking, times.end), times.packed);
  return times;
}

DeviceCompletions::DeviceCompletions(Hooks hooks, Nanos patience)
    : hooks_(std::move(hooks)), patience_(patience) {
  const SignalsBlocked signals;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "hvdtune-gpu");
}

void DeviceCompletions::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceCompletions::add(std::unique_ptr<DeviceBatch> batch) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(batch));
    ++under_way_;
  }
  changed_.notify_all();
}

std::vector<std::unique_ptr<DeviceBatch>> DeviceCompletions::take() {
  const std::lock_guard lock(mutex_);
  any_done_.store(false, std::memory_order_release);
  return std::exchange(done_, {});
}

bool DeviceCompletions::wait_until_idle(Nanos deadline) {
  std::unique_lock lock(mutex_);
  while (under_way_ > 0) {
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(left, kSecond)));
  }
  return true;
}

void DeviceCompletions::run() {
  Batches batches;  // under way, in the order of their launches
  Nanos pause = kFirstPause;
  Nanos checked = 0;
  Nanos last_chance = kForever;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (batches.empty()) changed_.wait(lock, [this] { return stop_ || !added_.empty(); });
      if (!batches.empty() && added_.empty()) {
        changed_.wait_for(lock, std::chrono::nanoseconds(pause));
      }
      const bool slow = !batches.empty() && monotonic_now() - batches.front()->launched > kLong;
      const Nanos longest = slow ? kLongestPause : kPause;
      pause = added_.empty() ? std::min(2 * pause, longest) : kFirstPause;
      for (auto& batch : added_) batches.push_back(std::move(batch));
      added_.clear();
      if (stop_ && batches.empty()) return;
      if (stop_) last_chance = std::min(last_chance, monotonic_now() + kGrace);
    }
    const Nanos now = monotonic_now();
    const bool closely = now - checked > kBetweenChecks;
    if (closely) checked = now;
    look(batches, closely);
    if (now > last_chance) give_up(batches, "the engine was stopped before the GPU was done");
  }
}

/// The failure that a batch's communicator has noticed, or an empty text.
std::string DeviceCompletions::failure_of(const Batches& batches) {
  for (const auto& batch : batches) {
    if (const auto why = batch->exchange->failure()) return *why;
  }
  return {};
}

void DeviceCompletions::report_slow(const Batches& batches) {
  if (batches.empty() || patience_ <= 0) return;
  // Report only the first: the later ones may just be waiting for it.
  DeviceBatch& first = *batches.front();
  const Nanos waited = monotonic_now() - first.launched;
  if (waited < (first.reports + 1) * patience_) return;
  ++first.reports;
  hooks_.slow(first, waited);
}

/// Removes batches that are done or never will be. `closely`: also checks for failures.
void DeviceCompletions::look(Batches& batches, bool closely) {
  Batches finished;
  std::string failure;
  const auto done = [&](std::unique_ptr<DeviceBatch>& batch) {
    try {
      if (!batch->end->done()) return false;
      batch->ended = monotonic_now();
    } catch (const Error& error) {
      failure = error.what();
      return false;
    }
    finished.push_back(std::move(batch));
    return true;
  };
  if (closely) failure = failure_of(batches);
  const std::optional<std::string> over = hooks_.aborted();
  if (!over && failure.empty()) std::erase_if(batches, done);
  if (!over && !failure.empty()) hooks_.fail(failure);
  hand_over(std::move(finished));
  if (closely && !over && failure.empty()) report_slow(batches);
  if (over || !failure.empty()) {
    const std::optional<std::string> why = over ? over : hooks_.aborted();
    give_up(batches, why.value_or(failure));
  }
}

/// Ends them. Their submitters do not get the tensors back before the GPU has stopped using them,
/// if that happens in a reasonable time.
void DeviceCompletions::give_up(Batches& batches, const std::string& why) {
  if (batches.empty()) return;
  // In a stream each batch may be queued behind another, even one that was not added yet.
  if (hooks_.abort) hooks_.abort();
  for (const auto& batch : batches) batch->exchange->abort();
  const Nanos deadline = monotonic_now() + kGrace;
  for (const auto& batch : batches) {
    try {
      while (!batch->end->done() && monotonic_now() < deadline) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(kLongestPause));
      }
    } catch (const Error&) {  // the GPU does nothing any more
    }
    batch->status = {ErrorKind::kAborted, why};
    batch->ended = monotonic_now();
  }
  hand_over(std::exchange(batches, {}));
}

void DeviceCompletions::hand_over(Batches finished) {
  if (finished.empty()) return;
  const auto was_slow = [](const auto& batch) { return batch->reports > 0; };
  if (hooks_.slow_over && std::ranges::any_of(finished, was_slow)) hooks_.slow_over();
  {
    const std::lock_guard lock(mutex_);
    under_way_ -= finished.size();
    for (auto& batch : finished) done_.push_back(std::move(batch));
    any_done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  hooks_.done();
}

}  // namespace hvdtune
