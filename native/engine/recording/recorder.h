#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/execution/executor.h"
#include "engine/operation/operation.h"
#include "engine/operation/tensor_entry.h"
#include "observe/capture/capture.h"

namespace hvdtune {

/// Writes the engine's operations to the capture as records. The caller holds a DriveLock, unless a
/// function says that any thread may call it.
class Recorder {
 public:
  Recorder(std::size_t bytes, capture::Capture::Ended ended) : capture_(bytes, std::move(ended)) {}

  capture::Capture& capture() { return capture_; }
  [[nodiscard]] bool active() const noexcept { return capture_.active(); }

  /// Rank 0: the coordinator has closed a batch, which is executed later.
  void closed(std::uint64_t serial, Nanos time, Nanos first_ready);

  /// A batch was executed by `members`, before its operations are done.
  void executed(const wire::Schedule& schedule, const std::vector<OperationPtr>& batch,
                const std::vector<int>& members, const Executor::BatchTimes& times,
                std::uint64_t epoch, bool ok);

  /// Rank 0, if other ranks do not record.
  void announced(const TensorEntry& entry, int rank, Nanos time);

  /// All ranks got an error instead of a result.
  void refused(const wire::Request& request, const std::string& why);

  /// The settings of the job, from now on. Any thread.
  void settings(const wire::RuntimeSettings& settings);

  /// Ranks have waited too long for another. Any thread.
  void stall(const std::string& report);

  /// A caller was blocked until now. Any thread.
  void waited(const Operation& operation, Nanos begin);

 private:
  void look_up(Operation& operation);
  RecordedAs name(const wire::Request& request);
  void fill_in_times(capture::Batch& record);
  void describe_set(std::uint32_t set, std::uint64_t batch, const std::vector<int>& members);

  capture::Capture capture_;
  struct Slot {
    RecordedAs names;
    std::uint64_t agreement = 0;
  };
  std::vector<Slot> by_slot_;
  std::unordered_map<std::string, RecordedAs> by_description_;
  std::string key_;  // kept for its memory

  struct DescribedSet {
    std::uint32_t generation = 0;
    std::vector<int> members;
  };
  std::unordered_map<std::uint32_t, DescribedSet> described_sets_;

  struct Closed {
    std::uint64_t serial;
    Nanos time;
    Nanos first_ready;
  };
  std::deque<Closed> closed_;
};

}  // namespace hvdtune
