#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvdtune {

/// The global ranks of every process set, ascending; number 0 is the whole job.
class ProcessSets {
 public:
  explicit ProcessSets(std::vector<std::vector<int>> ranks) : ranks_(std::move(ranks)) {}

  [[nodiscard]] std::size_t count() const { return ranks_.size(); }
  [[nodiscard]] bool exists(std::uint32_t set) const { return set < ranks_.size(); }
  [[nodiscard]] const std::vector<int>& ranks(std::uint32_t set) const { return ranks_[set]; }
  [[nodiscard]] const std::vector<std::vector<int>>& all() const { return ranks_; }

  /// Place of a global rank in the set, or -1.
  [[nodiscard]] int index_of(std::uint32_t set, int rank) const {
    const auto& ranks = ranks_[set];
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
  }

 private:
  std::vector<std::vector<int>> ranks_;
};

}  // namespace hvdtune
