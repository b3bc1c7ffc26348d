#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"

namespace hvdtune {

/// The ranks that have called join(), and contribute zeros until all others have also called it.
class JoinedRanks {
 public:
  explicit JoinedRanks(std::size_t size) : joined_(size, false) {}

  /// `time`: when the rank called join(). The calls may be heard of in another order.
  void add(int rank, Nanos time) {
    joined_[static_cast<std::size_t>(rank)] = true;
    if (count_ == 0 || time >= last_time_) {
      last_ = rank;
      last_time_ = time;
    }
    ++count_;
  }
  void clear() {
    std::fill(joined_.begin(), joined_.end(), false);
    count_ = 0;
  }

  [[nodiscard]] bool contains(int rank) const { return joined_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] bool all() const { return count_ == joined_.size(); }
  /// The last rank that has joined; -1 if none has.
  [[nodiscard]] int last() const { return last_; }

 private:
  std::vector<bool> joined_;
  std::size_t count_ = 0;
  int last_ = -1;
  Nanos last_time_ = 0;
};

}  // namespace hvdtune
