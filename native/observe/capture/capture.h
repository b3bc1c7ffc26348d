#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/op_kind.h"
#include "observe/capture/capture_buffers.h"
#include "observe/capture/capture_records.h"
#include "observe/capture/capture_writer.h"

namespace hvdtune::capture {

/// The steps to record: first ≤ step < end. If `first` is 0, from the beginning; if `end` is 0, to
/// the end.
struct Window {
  std::int64_t first = 0;
  std::int64_t end = 0;

  bool operator==(const Window&) const = default;
};

struct Options {
  std::string path;
  /// Members of the identity, as JSON without the surrounding braces. They include `rank`; start()
  /// adds the times of the start.
  std::string identity;
  int rank = 0;
  Window window;
  std::size_t file_limit = 0;  ///< most bytes of the file; 0 = no limit
  int claimed = -1;            ///< the file at `path`, see TraceFile::open
};

/// One tensor, for its name's first use.
struct Named {
  std::string_view name;
  std::uint32_t process_set;
  OpKind kind;
  DType dtype;
  std::int64_t bytes;
};

/// One rank's recording: fixed-size records are put into bounded buffers, and a thread that sleeps
/// in between appends them to a file, which is valid JSON at every moment. If a buffer is full,
/// records are lost and counted, and nobody waits. Only new names and texts are formatted.
///
/// Threads: the engine makes the calls marked "one at a time" under its DriveLock; any thread may
/// make the others. Times are CLOCK_MONOTONIC nanoseconds.
class Capture {
 public:
  static constexpr std::size_t kDefaultBytes = std::size_t{16} << 20;

  /// The writer's thread calls this when a file is closed, with an error text if the file is
  /// incomplete. `recorded`: this ended the recording; else it had ended before, and another one
  /// may have begun. Must not call back.
  using Ended = std::function<void(const std::string& error, bool recorded)>;

  /// \param bytes most memory for a file's records and texts that are not written yet
  explicit Capture(std::size_t bytes = kDefaultBytes, Ended ended = {});
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Calls end(), then join().
  ~Capture();

  /// Whether records are being taken: one relaxed load, all that a capture costs when off.
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  /// Whether a file is open, even if its window has not begun.
  [[nodiscard]] bool open() const noexcept { return open_.load(std::memory_order_acquire); }

  /// Creates or empties the file and records from now on, or from the window's start. Ends a file
  /// in use, whose remaining records are written meanwhile. Waits for that only if it is the same
  /// file, or if the file before it is not complete either. Returns an empty string, or why nothing
  /// is recorded. One at a time.
  std::string start(const Options& options);
  /// Stops recording; the file is completed and closed soon. One at a time. False if the window of
  /// steps never began.
  bool end(const std::string& reason);
  /// Waits until ended files are closed. Returns at once while a file is open. Any thread.
  void join();

  /// Number of the file, from 1 on: ids of names count from 0 in each file. Any thread.
  [[nodiscard]] std::uint32_t generation() const {
    return generation_.load(std::memory_order_relaxed);
  }
  /// Names new tensors; returns the id of the first; the others' ids follow it. Ids are never
  /// reused in a file. Returns kNone, and names nothing, if too much waits to be written. One at a
  /// time.
  std::uint32_t name(std::span<const Named> tensors);

  /// Records an executed batch; `fill(TensorRuns::Batch&)` puts each of its tensors, in order, and
  /// completes `record`; this function sets its number of tensors. One at a time.
  template <typename Fill>
  void batch(Batch& record, Fill&& fill) {
    Buffers* all = buffers();
    if (all == nullptr) return;
    TensorRuns& ring = all->tensors;
    {
      TensorRuns::Batch tensors(ring, static_cast<std::uint32_t>(record.serial));
      fill(tensors);
      record.tensors = tensors.count();
    }
    put_one(*all, all->batches, record, Stream::kBatches);
    if (!ring.publish()) all->lose(Stream::kTensors, record.tensors);
    if (ring.half_full()) wake();
  }
  /// Adds a batch's CPU time of the thread that executed it. One at a time.
  void communicated(Nanos cpu) { communication_cpu_.fetch_add(cpu, std::memory_order_relaxed); }
  /// Reports that the calling thread, while blocked in an operation, waited for a CPU for
  /// `cpu_wait`: step() does not count that time. Any thread.
  static void waited_while_blocked(Nanos cpu_wait);
  /// Records the ranks of a process set from the batch with serial number `batch` on. Returns
  /// false, and records nothing, if too much waits to be written. One at a time.
  bool process_set(std::uint32_t set, std::uint64_t batch, std::span<const int> ranks);
  /// A rank announced a tensor. One at a time.
  void ready(const Ready& record);

  /// Any thread may call the rest.
  void wait(const Wait& record);
  void mark(MarkKind kind, std::int64_t value, std::string_view text = {});
  void counter(std::string_view name, double value);
  /// The settings from now on, as JSON.
  void settings(std::uint64_t epoch, std::string_view text);
  /// Rank 0's clock is this rank's plus `offset`, within ± `bound`, at `local`.
  void clock(Nanos local, Nanos offset, Nanos bound);

  /// A training step ends; it counts whether it is recorded or not. Also records, unless the last
  /// such record was within the last 10 ms: how many CPUs this process, and its batches, kept busy
  /// since then, and for how much of that time the calling thread, if it is the same, waited for a
  /// CPU (without the time given to waited_while_blocked()). Returns true if a window, and so the
  /// recording, begins or ends here.
  bool step();
  [[nodiscard]] std::int64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  /// The first step of the last window; 0 = from the beginning. Not while another thread
  /// calls start().
  [[nodiscard]] std::int64_t first_step() const { return window_.first; }

 private:
  void wake();
  std::size_t prepare(const Options& options);
  void begin(Nanos now);
  void finish(const std::string& reason);
  static std::uint32_t text_id(Buffers& buffers, std::string_view text);
  void put_cpus_used(Buffers& all, Nanos now);
  /// The buffers to fill now; null if nobody records.
  [[nodiscard]] Buffers* buffers() const noexcept {
    return active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  }
  template <typename Record>
  static void put_one(Buffers& buffers, RecordRing<Record>& ring, const Record& record,
                      Stream stream);
  template <typename Record>
  static void put_shared(Buffers& buffers, SharedRing<Record>& ring, const Record& record,
                         Stream stream);
  void on_ended(std::uint32_t generation, const std::string& error);

  const std::size_t bytes_;
  const Ended ended_;
  std::atomic<bool> active_{false};
  std::atomic<bool> open_{false};
  std::atomic<Buffers*> buffers_{nullptr};  // from the first start on
  std::atomic<std::uint32_t> generation_{0};
  std::uint32_t next_name_ = 0;
  pid_t owner_ = 0;

  // Never held during a write or a wait.
  std::mutex mutex_;  // of starting, ending, steps and settings
  /// A file's memory and writer. There are two, as one file may still be written when the next
  /// begins. They are kept, since a thread may be about to put a record into the one that has just
  /// ended.
  struct File {
    std::unique_ptr<Buffers> buffers;
    std::shared_ptr<Writer> writer;
  };
  std::array<File, 2> files_;
  std::size_t current_ = 0;  // of files_
  Window window_;
  bool awaits_window_ = false;
  std::atomic<std::int64_t> steps_{0};
  Nanos last_step_ = 0;

  /// CPU time so far of all threads of the process, and the part of it for batches; and for how
  /// long the calling thread waited for a CPU, except while blocked.
  struct CpuTimes {
    Nanos at = 0;
    Nanos process = 0;  // 0: not read
    Nanos communication = 0;
    std::optional<Nanos> waited;  // nothing if the kernel does not count it
    std::thread::id thread;
  };
  [[nodiscard]] CpuTimes cpu_times(Nanos now) const;
  CpuTimes last_cpu_;  // at the end of an earlier step, or at the window's start
  std::atomic<Nanos> communication_cpu_{0};
  std::uint64_t epoch_ = 0;
  std::string settings_;
};

template <typename Record>
void Capture::put_one(Buffers& buffers, RecordRing<Record>& ring, const Record& record,
                      Stream stream) {
  if (!ring.has_room(1)) return buffers.lose(stream);
  ring.put(record);
  ring.publish();
}

template <typename Record>
void Capture::put_shared(Buffers& buffers, SharedRing<Record>& ring, const Record& record,
                         Stream stream) {
  if (!ring.put(record)) buffers.lose(stream);
}

}  // namespace hvdtune::capture
