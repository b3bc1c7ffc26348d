#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/status/step_log.h"
#include "observe/stragglers/chance.h"
#include "observe/stragglers/one_time.h"
#include "observe/stragglers/straggler.h"

namespace hvdtune {

/// Rank 0's data about the running job, for `hvdtune top` and the exported metrics. The
/// coordinator's thread writes, any thread reads, and neither waits for long: it can be read while
/// the engine is stuck in an operation.
class JobStatus {
 public:
  /// What holds tensors up: other ranks, or this rank's GPU.
  enum class StallCause : std::size_t { kRanks, kGpu };

  /// `host_of`: by rank, the number of its host, from 0 on.
  explicit JobStatus(const std::vector<int>& host_of)
      : ranks_(host_of.size()),
        ranks_of_(ranks_by_host(host_of)),
        hosts_(ranks_of_.size()),
        began_(monotonic_now()) {}

  /// Numbers of tensors and groups: only some ranks have announced `incomplete` ones, `ready` ones
  /// wait for their batch, `scheduled` is the total so far. Never waits.
  void waiting(std::size_t incomplete, std::size_t ready, std::uint64_t scheduled) {
    incomplete_.store(incomplete, std::memory_order_relaxed);
    ready_.store(ready, std::memory_order_relaxed);
    scheduled_.store(scheduled, std::memory_order_relaxed);
  }
  /// `tensors` more of those scheduled are done. Never waits.
  void executed(std::uint64_t tensors) { executed_.fetch_add(tensors, std::memory_order_relaxed); }
  /// Something was scheduled.
  void scheduled(std::uint64_t batches, std::int64_t bytes);
  /// A step has ended. `blocked`: how long this rank's callers have been blocked since the start.
  void step(const StepRecord& step, Nanos blocked, const StragglerWatch& stragglers);
  /// A report that `tensors` tensors stall; they do until stall_over() of the same cause.
  void stalled(StallCause cause, const std::string& report, std::size_t tensors, Nanos now);
  void stall_over(StallCause cause);
  /// Adds a line for another part of the program, for example the tuner. An empty text removes it.
  void note(const std::string& key, const std::string& text);

  /// The inside of a JSON object. Numbers that are not known yet are null. Units are in the names;
  /// docs/live.md describes every key.
  [[nodiscard]] std::string json(Nanos now) const;

 private:
  struct Mark {
    Nanos end = 0;
    Nanos blocked = 0;
  };
  /// Means over the last steps, without those that take long only once.
  struct Lately {
    Nanos steps = 0;
    Nanos time = 0;
    Nanos blocked = 0;
    Nanos left_out = 0;  // time of the steps that take long once
  };
  struct Stall {
    std::size_t tensors = 0;  // 0 = none
    Nanos since = 0;          // its first report
    std::string report;
  };
  [[nodiscard]] std::vector<Nanos> durations() const;
  [[nodiscard]] Lately lately() const;
  static constexpr std::size_t kMarks = 33;  // the ends of 32 steps

  mutable std::mutex mutex_;
  std::vector<Lateness> ranks_;
  const std::vector<std::vector<int>> ranks_of_;  // by host
  std::vector<Lateness> hosts_;
  std::vector<Charge> rank_charges_;
  std::vector<Charge> host_charges_;
  const Nanos began_;
  std::atomic<std::size_t> incomplete_{0};
  std::atomic<std::size_t> ready_{0};
  std::atomic<std::uint64_t> scheduled_{0};
  std::atomic<std::uint64_t> executed_{0};
  std::uint64_t batches_ = 0;
  std::int64_t bytes_ = 0;
  std::uint64_t steps_ = 0;
  Nanos first_end_ = 0;  // of the first step, whose begin is not known
  OneTime one_time_;
  StepRecord last_;
  std::array<Mark, kMarks> marks_{};
  int late_rank_ = -1;
  int late_host_ = -1;
  std::uint64_t stall_reports_ = 0;
  std::array<Stall, 2> stalls_{};  // by cause
  std::map<std::string, std::string> notes_;
};

}  // namespace hvdtune
