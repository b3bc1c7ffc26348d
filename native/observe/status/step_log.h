#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// One training step, as far as the engine can see it.
struct StepRecord {
  std::uint64_t index = 0;
  Nanos end = 0;
  Nanos duration = 0;
  std::int64_t bytes = 0;
  std::int64_t batches = 0;
  std::int64_t tensors = 0;
  std::uint64_t epoch = 0;  ///< of the settings at the end of the step
  bool named = false;       ///< some of its tensors have a user-given name
};

/// Finds training steps in the traffic: a step ends when a tensor is scheduled again. Only
/// allreduces of the global process set count, as in Horovod. Tensors without a user-given name
/// belong to the current step, as long as others have a name. If none has one, they are
/// distinguished by their descriptions: then a "step" may be a part of the real one
/// (`StepRecord::named` is false), and the reader must join the parts.
///
/// The coordinator's thread writes, any other thread reads.
class StepLog {
 public:
  /// An operation on `tensors` tensors is scheduled. `identity`: its name, or, if it is not
  /// `named`, a description of it.
  void tensor(const std::string& identity, bool named, std::int64_t tensors, std::int64_t bytes,
              Nanos now, std::uint64_t epoch);
  /// The same for a tensor that the caller keeps a record of: `last_step` is step() at the time
  /// when the tensor was last scheduled.
  void known_tensor(std::uint64_t last_step, std::int64_t tensors, std::int64_t bytes, Nanos now,
                    std::uint64_t epoch);
  /// The number of the current step, from 1.
  [[nodiscard]] std::uint64_t step() const { return current_.index + 1; }
  /// Call it when the caller drops its record of a tensor of the current step.
  void remember(const std::string& identity) {
    make_room();
    seen_.insert(identity);
  }
  void batch() { ++current_.batches; }
  /// The last step that has ended; its index and duration are 0 until the second step has ended.
  [[nodiscard]] const StepRecord& last() const { return last_; }

  /// Tensors of the current and of the previous step; for closing a batch when a step is complete.
  [[nodiscard]] std::int64_t tensors_so_far() const { return current_.tensors; }
  /// Tensors per step; 0 if the last two steps differ.
  [[nodiscard]] std::int64_t tensors_expected() const { return expected_; }
  [[nodiscard]] bool seen(const std::string& identity) const { return seen_.contains(identity); }

  /// Moves out the steps since the last call; blocks until there is one, at most until `deadline`.
  /// Returns nothing at the deadline, or after close().
  std::vector<StepRecord> read(Nanos deadline);
  void close();
  [[nodiscard]] bool closed();

 private:
  void finish_step(Nanos now, std::uint64_t epoch);
  bool ends_step(const std::string& identity, bool named);
  /// Names that never come again must not fill the memory: forgets all of them, in the same step.
  void make_room() {
    if (seen_.size() >= kMostSeen) seen_.clear();
  }

  static constexpr std::size_t kMostSeen = std::size_t{1} << 18;

  /// After this many tensors without a name in a row, names are no longer expected.
  static constexpr std::int64_t kUnnamedInARow = 1024;

  // Used only by the coordinator.
  std::unordered_set<std::string> seen_;  // in this step, except those in the caller's records
  StepRecord current_;
  StepRecord last_;
  Nanos step_begin_ = 0;
  std::int64_t previous_tensors_ = -1;
  std::int64_t expected_ = 0;
  bool previous_named_ = false;
  std::int64_t unnamed_in_a_row_ = 0;

  // Shared with the reader. Bounded: nobody may be reading.
  static constexpr std::size_t kKept = 4096;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepRecord> done_;
  bool closed_ = false;
};

}  // namespace hvdtune
