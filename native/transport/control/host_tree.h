#pragma once

#include <vector>

namespace hvdtune {

/// Through which hosts news travel to the one of rank 0, host 0, and back: a tree with it as the
/// root, in which each host has at most `fanout` others below it. Up to fanout + 1 hosts are a
/// star. The same on all hosts of a job. Immutable.
class HostTree {
 public:
  /// `fanout` > 0; `own` is this host's number.
  HostTree(int hosts, int own, int fanout);

  /// The next one on the way to host 0; -1 = this is it.
  [[nodiscard]] int parent() const { return parent_; }
  /// The next ones on the way to the hosts below, ascending.
  [[nodiscard]] const std::vector<int>& children() const { return children_; }
  /// parent(), if there is one, and children().
  [[nodiscard]] const std::vector<int>& neighbours() const { return neighbours_; }
  /// Which of them is next on the way to `host`; -1 for this host.
  [[nodiscard]] int next_to(int host) const { return next_to_[static_cast<std::size_t>(host)]; }
  /// Whether the way from host 0 to `host` leads through this one's neighbour `child`, or ends
  /// there.
  [[nodiscard]] bool is_below(int child, int host) const {
    return child != parent_ && next_to(host) == child;
  }

 private:
  int parent_;
  std::vector<int> children_;
  std::vector<int> neighbours_;
  std::vector<int> next_to_;
};

}  // namespace hvdtune
