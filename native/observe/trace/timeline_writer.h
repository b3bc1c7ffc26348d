#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "observe/trace/event_ring.h"
#include "observe/trace/trace_file.h"
#include "observe/trace/trace_format.h"

namespace hvdtune {

/// The thread that moves events from a ring into a trace file: every 50 ms, or when woken.
class TimelineWriter {
 public:
  /// `ring` outlives the writer, the others must exist until finish(). Clears `active` if writing
  /// fails.
  TimelineWriter(EventRing& ring, const std::atomic<std::uint64_t>& dropped,
                 std::atomic<bool>& active, Nanos origin);
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;
  /// Calls finish(), then waits until the thread ends.
  ~TimelineWriter();

  /// Opens the file and starts the thread. `claimed`: see TraceFile::open. Returns an error text,
  /// or an empty string.
  std::string start(const std::string& path, std::int64_t origin_wall_micros, int claimed);

  /// Any thread: wakes the writer, because there is much to write.
  void wake();

  /// Lets the thread write the ring's contents and close the file. Returns at once. Idempotent.
  void finish();
  /// Any thread: waits until that is done.
  void join();

  /// False in a forked child: it does not have the thread, so the writer can be neither finished
  /// nor destroyed.
  [[nodiscard]] bool in_owner_process() const;

 private:
  void run();
  bool write_pending();
  void write_events();
  void write_drops(Nanos time);
  bool flush();

  EventRing& ring_;
  const std::atomic<std::uint64_t>& dropped_;
  std::atomic<bool>& active_;
  TraceFormatter format_;
  TraceFile file_;
  std::string text_;
  std::uint64_t drops_written_ = 0;
  pid_t owner_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool wake_ = false;
  bool finishing_ = false;
  bool running_ = false;
  std::uint64_t last_dropped_ = 0;  // at finish()
  std::thread thread_;
};

}  // namespace hvdtune
