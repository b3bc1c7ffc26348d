#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "observe/capture/capture_records.h"
#include "observe/capture/record_ring.h"
#include "observe/capture/tensor_runs.h"

namespace hvdtune::capture {

/// The streams, in the order of kStreamNames.
enum class Stream : std::uint8_t { kTensors, kBatches, kWaits, kMarks, kReady, kCounters };
inline constexpr std::size_t kStreams = 6;
inline constexpr std::array<const char*, kStreams> kStreamNames = {
    "tensors", "batches", "waits", "marks", "ready", "counters"};

/// Records that are not written yet: about `bytes` bytes if all rings are full. Records that find
/// their ring full are lost and counted.
struct Buffers {
  explicit Buffers(std::size_t bytes)
      : tensors(bytes / 2),
        batches(bytes / 4 / sizeof(Batch)),
        waits(bytes / 32 / (sizeof(Wait) + 8)),
        marks(bytes / 128 / (sizeof(Mark) + 8)),
        ready(bytes / 16 / sizeof(Ready)),
        counters(bytes / 128 / (sizeof(Counter) + 8)),
        text_limit(bytes / 16) {}

  TensorRuns tensors;
  RecordRing<Batch> batches;
  SharedRing<Wait> waits;
  SharedRing<Mark> marks;
  RecordRing<Ready> ready;
  SharedRing<Counter> counters;
  std::array<std::atomic<std::uint64_t>, kStreams> dropped{};

  void lose(Stream stream, std::uint64_t count = 1) {
    dropped[static_cast<std::size_t>(stream)].fetch_add(count, std::memory_order_relaxed);
  }

  /// Array items and whole events, as JSON, that the writer puts before the records.
  struct Pending {
    std::string names;
    std::string texts;
    std::string events;

    [[nodiscard]] std::size_t bytes() const { return names.size() + texts.size() + events.size(); }
  };
  std::mutex mutex;  // guards what follows; never held during a write
  Pending pending;
  std::size_t text_limit;
  int rank = 0;
  std::unordered_map<std::string, std::uint32_t> texts;  // ids of the known texts
  std::uint32_t next_text = 0;

  /// Consumer. Whether more than half of any ring is used, except the tensors', which their
  /// producer checks.
  [[nodiscard]] bool half_full();
  /// Prepares for a new file of `of_rank`. Nobody may drain the buffers meanwhile.
  void forget_everything(int of_rank);
};

}  // namespace hvdtune::capture
