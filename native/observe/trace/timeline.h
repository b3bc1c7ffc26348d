#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/op_kind.h"
#include "observe/trace/event_ring.h"

namespace hvdtune {

class TimelineWriter;

/// Records what happens to each tensor as a Chrome trace in Horovod's layout: one process per
/// tensor name ("row"), with a NEGOTIATE span, one tick per rank, and the operation's span with
/// its activities.
///
/// Events are put as fixed-size records into a bounded ring; a thread that sleeps in between
/// formats and writes them about every 50 ms. If the ring is full, events are lost and counted, and
/// nobody waits. Whatever is lost, every B in the file has its E: the room for an E is reserved
/// when its B is recorded.
///
/// Threads: any thread may call active(), mark_cycles(), dropped() and join(). One thread at a time
/// calls all others, including start() and stop(): the engine holds its progress lock. Times are
/// CLOCK_MONOTONIC nanoseconds.
class Timeline {
 public:
  /// Slots of the ring, of 40 bytes each: 10 MB.
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 18;
  /// Tensor names known at a time. Beyond that, a name that has not been used recently is
  /// forgotten; if it is used again, it begins a second row.
  static constexpr std::size_t kDefaultMaxRows = std::size_t{1} << 16;

  explicit Timeline(std::size_t capacity = kDefaultCapacity,
                    std::size_t max_rows = kDefaultMaxRows);
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  /// Calls stop(), then join().
  ~Timeline();

  /// Whether events are being recorded: one relaxed load, all that a timeline costs when off.
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }

  /// Creates or empties the file, writes the header, starts the writer thread. With the path in
  /// use, only changes `mark_cycles`. With another path, stops the file in use first. Returns an
  /// empty string, or why nothing is recorded. Row numbers begin at 1 in every file; the times of
  /// all files of this object count from its first start. If the disk fails later, one warning is
  /// logged and recording ends. `claimed`: see TraceFile::open; not with the path in use.
  std::string start(const std::string& path, bool mark_cycles, int claimed = -1);

  /// Ends open spans; the writer thread writes what has been recorded so far and closes the file.
  /// Waits only for a file that was stopped before and is not closed yet. Idempotent.
  void stop();
  /// Waits until the stopped file is closed. Returns at once if there is none.
  void join();

  [[nodiscard]] bool mark_cycles() const noexcept {
    return mark_cycles_.load(std::memory_order_relaxed);
  }

  /// The coordinator has received the first announcement of the tensor. If the row's previous
  /// operation has not ended yet, the span begins when it ends.
  void negotiate_start(std::string_view tensor, OpKind kind, Nanos t);
  /// `rank` announced the tensor at `t`; between negotiate_start and negotiate_end.
  void rank_ready(std::string_view tensor, int rank, Nanos t);
  void negotiate_end(std::string_view tensor, Nanos t);

  /// \param label static storage: "ALLREDUCE", "ERROR" …
  void op_start(std::string_view tensor, const char* label, Nanos t);
  /// A part of the running operation; one at a time. \param label static storage.
  void activity_start(std::string_view tensor, const char* label, Nanos t);
  void activity_end(std::string_view tensor, Nanos t);
  /// Also ends an activity that is still running.
  /// \param shape as shown, e.g. "[2, 3]"; empty if the operation has no output
  /// \param bytes of this tensor
  /// \param batch the number shared by the tensors that were fused
  /// \param ok false: the operation failed, and no output is described
  void op_end(std::string_view tensor, Nanos t, DType dtype, std::string_view shape,
              std::int64_t bytes, std::uint64_t batch, bool ok);

  /// Recorded only if cycles are marked.
  void cycle_start(Nanos t);
  /// An event of the whole job, e.g. a change of settings or a stall.
  void instant(std::string_view name, Nanos t);

  /// Events lost in the current or last file because the ring was full.
  [[nodiscard]] std::uint64_t dropped() const noexcept {
    return dropped_.load(std::memory_order_relaxed);
  }

 private:
  enum class Span : std::uint8_t { kClosed, kOpen, kLost };
  struct Row {
    std::string name;
    std::string shape;    // the last one recorded
    Nanos last_time = 0;  // of its last B or E; times never go backwards
    Span negotiation = Span::kClosed;
    Span operation = Span::kClosed;
    Span activity = Span::kClosed;
    bool used_lately = false;
    bool negotiation_waits = false;  // for the end of the running operation
    OpKind waiting_kind = OpKind::kAllreduce;
    Nanos waiting_time = 0;

    [[nodiscard]] bool idle() const;
  };
  static constexpr std::uint32_t kNoRow = UINT32_MAX;

  void forget_rows();
  std::uint32_t find_row(std::string_view tensor);
  std::uint32_t find_or_add_row(std::string_view tensor);
  std::uint32_t free_row_slot();
  Span open_span(std::uint32_t row, EventRecord record);
  void close_span(std::uint32_t row, Span& span, EventRecord record);
  void end_negotiation(std::uint32_t row, Nanos t);
  void end_activity(std::uint32_t row, Nanos t);
  void begin_waiting_negotiation(std::uint32_t row);
  bool push(const EventRecord& record, std::string_view text = {}, std::size_t set_aside = 0);
  void lose_event() { dropped_.fetch_add(1, std::memory_order_relaxed); }

  const std::size_t capacity_;
  const std::size_t max_rows_;
  std::atomic<bool> active_{false};
  std::atomic<bool> mark_cycles_{false};
  std::atomic<std::uint64_t> dropped_{0};

  std::string path_;
  Nanos origin_ = 0;
  std::int64_t origin_wall_micros_ = 0;
  std::unique_ptr<EventRing> ring_;
  std::unique_ptr<TimelineWriter> writer_;

  /// A file that was stopped and is being written. The writer reads the ring, so it is destroyed
  /// first.
  struct Stopped {
    std::unique_ptr<EventRing> ring;
    std::unique_ptr<TimelineWriter> writer;
  };
  void replace_stopped(std::shared_ptr<Stopped> stopped);
  std::mutex stopped_mutex_;
  std::shared_ptr<Stopped> stopped_;

  std::vector<std::unique_ptr<Row>> rows_;
  std::unordered_map<std::string_view, std::uint32_t> row_of_name_;  // keys live in the rows
  std::size_t eviction_hand_ = 0;
  std::int64_t next_pid_ = 1;
  std::size_t set_aside_ = 0;  // slots kept free for the ends of open spans
};

}  // namespace hvdtune
