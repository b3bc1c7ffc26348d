#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "observe/capture/capture_buffers.h"
#include "observe/capture/capture_file.h"
#include "observe/capture/tensor_runs.h"

namespace hvdtune::capture {

/// Appends `text` as a JSON string, quotes included.
void append_json_string(std::string& out, std::string_view text);

/// The thread that writes the buffers' contents to a file, twice a second, when woken, or when half
/// of a ring is used.
class Writer {
 public:
  /// The writer's thread calls this, with an error text if the file is incomplete.
  using Ended = std::function<void(const std::string& error)>;

  /// `buffers` outlive the writer.
  Writer(Buffers& buffers, int rank, Ended ended);
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer();

  /// Opens the file and starts the thread. `identity`: the args of the first event. `claimed`: see
  /// TraceFile::open. Returns an error text, or an empty string.
  std::string start(const std::string& path, std::string_view identity, std::size_t limit,
                    int claimed);

  /// Any thread: wakes the writer, because there is much to write.
  void wake();
  /// Any thread: lets the writer write the rest, then the end with its reason, and close the file.
  /// Returns at once. Call it once.
  void finish(const std::string& reason);
  /// Any thread: waits until that is done and `ended` has returned.
  void join();
  /// Any thread: false once that has happened.
  [[nodiscard]] bool running();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void run();
  std::string write_file();
  bool wait_until_due();
  bool write_pending();
  bool append_blocks();
  bool flush();
  void take_batches();
  void take_tensors();
  void take_ready();
  template <typename Record>
  void take_shared(SharedRing<Record>& ring, Stream stream, std::vector<Record>& records);
  /// `runs`: for packed tensors (PackedTensors), whose bytes are not the records themselves.
  void append_block(Stream stream, const void* records, std::size_t count, std::size_t bytes,
                    std::size_t runs = 0);
  void append_items(std::string_view event, std::string_view key, std::string_view items);
  void append_drops();
  static void append_counts(std::string& out, const std::array<std::uint64_t, kStreams>& counts);

  Buffers& buffers_;
  const int rank_;
  Ended ended_;
  CaptureFile file_;
  std::string path_;
  std::size_t append_bytes_ = 0;
  bool limited_ = false;
  bool took_all_batches_ = false;
  std::size_t tensors_due_ = 0;  // tensors of batches that were taken
  std::string lasting_;
  std::string blocks_;
  std::vector<Batch> batches_;  // being written
  PackedTensors packed_;
  std::vector<Wait> waits_;
  std::vector<Mark> marks_;
  std::vector<Counter> counters_;
  std::array<std::uint64_t, kStreams> drops_written_{};
  std::array<std::uint64_t, kStreams> records_written_{};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool wake_ = false;
  bool finishing_ = false;
  bool running_ = false;
  std::string reason_;
  std::thread thread_;
};

}  // namespace hvdtune::capture
