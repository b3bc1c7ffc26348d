#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace hvdtune {

/// The global ranks of every process set, ascending; number 0 is the whole job. Numbers of removed
/// sets have no ranks.
class ProcessSets {
 public:
  explicit ProcessSets(std::vector<std::vector<int>> ranks) : ranks_(std::move(ranks)) {}

  /// Numbers assigned so far, including removed ones.
  [[nodiscard]] std::size_t numbers() const { return ranks_.size(); }
  [[nodiscard]] bool exists(std::uint32_t set) const {
    return set < ranks_.size() && !ranks_[set].empty();
  }
  [[nodiscard]] const std::vector<int>& ranks(std::uint32_t set) const { return ranks_[set]; }
  [[nodiscard]] const std::vector<std::vector<int>>& all() const { return ranks_; }

  /// Index of a global rank in the set, or -1.
  [[nodiscard]] int index_of(std::uint32_t set, int rank) const {
    const auto& ranks = ranks_[set];
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
  }

  /// The set that has exactly these ranks.
  [[nodiscard]] std::optional<std::uint32_t> find(const std::vector<int>& ranks) const {
    const auto found = std::find(ranks_.begin(), ranks_.end(), ranks);
    if (ranks.empty() || found == ranks_.end()) return std::nullopt;
    return static_cast<std::uint32_t>(found - ranks_.begin());
  }

  void add(std::uint32_t set, std::vector<int> ranks) {
    if (ranks_.size() <= set) ranks_.resize(set + 1);
    ranks_[set] = std::move(ranks);
  }
  void remove(std::uint32_t set) { ranks_[set].clear(); }

 private:
  std::vector<std::vector<int>> ranks_;
};

}  // namespace hvdtune
