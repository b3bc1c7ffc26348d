#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/watch/stack_query.h"

namespace hvdtune {

/// Ranks' Python stacks on demand, by way of the watch's connections: also of ranks that are in the
/// middle of an operation, and when rank 0's engine does not run.
///
/// set_source() and stop() as in StackQuery; receive() is called by the watch's thread, ask() by
/// any.
class StackService {
 public:
  using Send = std::function<bool(int rank, std::string_view message)>;

  StackService(int rank, int size, Send send);

  void set_source(std::function<std::string()> source) { own_.set_source(std::move(source)); }
  /// False when the message is none of a StackService.
  bool receive(int from, std::string_view message);
  /// Rank 0: the stacks of these ranks, waiting until `deadline` at most. Who has not answered by
  /// then is missing from the result. What comes later is no answer to the next question: each has
  /// a number.
  std::map<int, std::string> ask(const std::vector<int>& ranks, Nanos deadline);
  void stop() { own_.stop(); }

 private:
  void answer();
  void arrived(int rank, std::uint64_t question, std::string text);

  const int rank_;
  const int size_;
  const Send send_;
  StackQuery own_;
  std::mutex asking_;  // one caller of ask() at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t question_ = 0;  // the last
  std::map<int, std::string> answers_;
};

}  // namespace hvdtune
