#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/job.h"
#include "engine/recording/recorder.h"
#include "engine/submission/submissions.h"
#include "engine/watch/stack_query.h"
#include "engine/watch/stack_service.h"
#include "engine/watch/stall_reports.h"
#include "transport/control/bridge.h"
#include "transport/control/clock_sync.h"
#include "transport/control/liveness.h"

namespace hvdtune {

/// Everything between ranks besides operations: notices dead ranks and a stopped rank 0, compares
/// clocks, fetches Python stacks. Uses its own threads, so it works even while the engine is in the
/// middle of an operation. Any thread may call any method except start(), stop() and disconnect().
class Watch {
 public:
  /// `fanout`: see HostTree; `clock_shift` is added to this rank's clock. Starts nothing, but sets
  /// `job.bridge`. All references outlive it.
  Watch(Job& job, Submissions& submissions, Recorder& recorder, StallReports& reports, int fanout,
        Nanos clock_shift);
  /// Calls disconnect().
  ~Watch() { disconnect(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void start();
  /// Call it at the end of the job; waits for a call of the stack source to return. The bridge goes
  /// on.
  void stop();
  /// Ends its threads at once, and the bridge.
  void disconnect();

  /// See Engine's methods of the same names.
  void set_stack_source(std::function<std::string()> source);
  void start_clock();
  bool stop_clock(Nanos deadline);
  [[nodiscard]] std::vector<ClockReading> clock_readings(std::size_t skip) const {
    return clock_.readings(skip);
  }

  /// This rank's Python stack, for queries in the schedule.
  StackQuery& stack_query() { return stack_query_; }
  /// Rank 0: all ranks' Python stacks.
  StackService& stacks() { return stacks_; }

 private:
  bool send(int rank, std::string_view message);
  void hear(int rank, std::string_view message);
  void take(int from, std::string_view message);
  void on_peer_death(int rank);
  Nanos turn(Nanos now);
  Nanos check_coordinator(Nanos now);
  void record_clock();

  Job& job_;
  Submissions& submissions_;
  Recorder& recorder_;
  StallReports& reports_;
  const BroadcastRing schedule_;
  StackQuery stack_query_;
  StackService stacks_;
  ClockSync clock_;
  // The watch's thread.
  std::size_t recorded_readings_ = 0;
  std::uint32_t seen_checks_ = 0;  // of rank 0, for stalls
  Nanos silent_since_ = 0;         // 0 = this rank waits for nothing
  Nanos silence_reported_ = 0;
  Nanos next_silence_check_ = 0;
  LivenessWatch liveness_;
  std::optional<Bridge> bridge_;  // on leaders, if there are several hosts
};

}  // namespace hvdtune
