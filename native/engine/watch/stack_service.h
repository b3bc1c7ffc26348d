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

/// Ranks' Python stacks on demand, over the watch's connections: even of ranks in the middle of an
/// operation, and if rank 0's engine does not run.
///
/// set_source() and stop() as in StackQuery; the watch's thread calls receive(), any thread may
/// call ask().
class StackService {
 public:
  using Send = std::function<bool(int rank, std::string_view message)>;

  StackService(int rank, int size, Send send);

  void set_source(std::function<std::string()> source) { own_.set_source(std::move(source)); }
  /// False if the message is not from a StackService.
  bool receive(int from, std::string_view message);
  /// Rank 0: the stacks of these ranks; waits until `deadline` at most. Ranks that have not
  /// answered by then are missing from the result. Later answers are discarded, since questions
  /// have numbers.
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
