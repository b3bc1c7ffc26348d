#include "observe/trace/timeline_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <system_error>

#include "base/log.h"
#include "base/threads/signals_blocked.h"

namespace hvdtune {
namespace {

constexpr std::chrono::milliseconds kFlushPeriod(50);
constexpr std::size_t kFlushBytes = 262144;
constexpr std::size_t kDrainSlots = 1024;

}  // namespace

TimelineWriter::TimelineWriter(EventRing& ring, const std::atomic<std::uint64_t>& dropped,
                               std::atomic<bool>& active, Nanos origin)
    : ring_(ring), dropped_(dropped), active_(active), format_(origin) {}

std::string TimelineWriter::start(const std::string& path, std::int64_t origin_wall_micros,
                                  int claimed) {
  format_.header(text_, origin_wall_micros);
  std::string error = file_.open(path, text_, 0, claimed);
  text_.clear();
  if (!error.empty()) return error;
  owner_ = getpid();
  const SignalsBlocked blocked;
  running_ = true;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    running_ = false;
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

TimelineWriter::~TimelineWriter() {
  finish();
  if (thread_.joinable()) thread_.join();
}

void TimelineWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
    last_dropped_ = dropped_.load(std::memory_order_relaxed);
  }
  changed_.notify_all();
}

void TimelineWriter::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
}

bool TimelineWriter::in_owner_process() const { return getpid() == owner_; }

void TimelineWriter::run() {
  pthread_setname_np(pthread_self(), "hvd-timeline");
  write_events();
  file_.close();
  const std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

void TimelineWriter::write_events() {
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kFlushPeriod, [this] { return wake_ || finishing_; });
      wake_ = false;
      last = finishing_;
    }
    if (!write_pending()) {
      const std::lock_guard lock(mutex_);
      if (!finishing_) active_.store(false, std::memory_order_relaxed);
      HVD_LOG(kWarning) << file_.error()
                        << (finishing_
                                ? "; the end of that recording, which had been stopped, is missing."
                                : "; recording has ended, training goes on.");
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
  std::uint64_t dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    dropped = finishing_ ? last_dropped_ : dropped_.load(std::memory_order_relaxed);
  }
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
