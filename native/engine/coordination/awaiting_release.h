#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/check.h"

namespace hvdtune {

/// Items that a schedule entry has removed, and that may be reused once every rank has passed that
/// entry.
template <typename T>
class AwaitingRelease {
 public:
  void add(T thing) { waiting_.push_back({std::move(thing), kNotPublished}); }

  /// Reports that the entry of the oldest item not yet reported ends before this position of the
  /// schedule.
  void published(std::uint64_t position) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                   [](const Waiting& w) { return w.position == kNotPublished; });
    HVD_CHECK(next != waiting_.end());
    next->position = position;
  }

  /// Every rank has passed `position`: returns the items that may be reused.
  std::vector<T> release(std::uint64_t position) {
    std::vector<T> released;
    while (!waiting_.empty() && waiting_.front().position <= position) {
      released.push_back(std::move(waiting_.front().thing));
      waiting_.pop_front();
    }
    return released;
  }

  /// The oldest item for which `fits` is true, or null.
  template <typename Fits>
  const T* find(Fits&& fits) const {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Waiting& w) { return fits(w.thing); });
    return found == waiting_.end() ? nullptr : &found->thing;
  }

  [[nodiscard]] bool empty() const { return waiting_.empty(); }

 private:
  static constexpr std::uint64_t kNotPublished = UINT64_MAX;
  struct Waiting {
    T thing;
    std::uint64_t position;
  };
  std::deque<Waiting> waiting_;
};

}  // namespace hvdtune
