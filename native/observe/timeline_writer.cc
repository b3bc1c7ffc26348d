#include "observe/timeline_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <system_error>

#include "base/log.h"
#include "base/signals_blocked.h"

namespace hvdtune {
namespace {

constexpr std::chrono::milliseconds kFlushPeriod(50);
constexpr std::size_t kFlushBytes = 262144;
constexpr std::size_t kDrainSlots = 1024;

}  // namespace

TimelineWriter::TimelineWriter(EventRing& ring, const std::atomic<std::uint64_t>& dropped,
                               std::atomic<bool>& active, Nanos origin)
    : ring_(ring), dropped_(dropped), active_(active), format_(origin) {}

std::string TimelineWriter::start(const std::string& path, std::int64_t origin_wall_micros) {
  format_.header(text_, origin_wall_micros);
  std::string error = file_.open(path, text_);
  text_.clear();
  if (!error.empty()) return error;
  owner_ = getpid();
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    error = "cannot start the timeline's thread: " + std::string(failure.what());
  }
  return error;
}

void TimelineWriter::wake() {
  {
    const std::lock_guard lock(mutex_);
    wake_ = true;
  }
  changed_.notify_one();
}

void TimelineWriter::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  changed_.notify_one();
  thread_.join();
  file_.close();
}

bool TimelineWriter::in_owner_process() const { return getpid() == owner_; }

void TimelineWriter::run() {
  pthread_setname_np(pthread_self(), "hvd-timeline");
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kFlushPeriod, [this] { return wake_ || finishing_; });
      wake_ = false;
      last = finishing_;
    }
    if (!write_pending()) {
      active_.store(false, std::memory_order_relaxed);
      HVD_LOG(kWarning) << file_.error() << "; recording has ended, training goes on.";
      return;
    }
  }
}

bool TimelineWriter::write_pending() {
  Nanos latest = 0;
  const auto format = [&](const EventRecord& record, std::string_view text) {
    format_.event(text_, record, text);
    latest = record.time;
  };
  while (ring_.drain(kDrainSlots, format)) {
    if (text_.size() >= kFlushBytes && !flush()) return false;
  }
  write_drops(latest);
  return flush();
}

void TimelineWriter::write_drops(Nanos time) {
  const std::uint64_t dropped = dropped_.load(std::memory_order_relaxed);
  if (dropped == drops_written_) return;
  drops_written_ = dropped;
  format_.dropped(text_, time == 0 ? monotonic_now() : time, dropped);
}

bool TimelineWriter::flush() {
  if (text_.empty()) return true;
  const bool ok = file_.append(text_);
  text_.clear();
  return ok;
}

}  // namespace hvdtune
