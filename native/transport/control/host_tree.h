#pragma once

#include <vector>

namespace hvdtune {

/// The hosts through which messages reach rank 0's host (host 0) and return: a tree with host 0 as
/// its root, in which each host has at most `fanout` direct children. Up to fanout + 1 hosts form a
/// star. The same on all hosts of a job. Immutable.
class HostTree {
 public:
  /// `fanout` > 0; `own` is this host's number.
  HostTree(int hosts, int own, int fanout);

  /// The next host on the way to host 0; -1 on host 0 itself.
  [[nodiscard]] int parent() const { return parent_; }
  /// The hosts directly below this one, ascending.
  [[nodiscard]] const std::vector<int>& children() const { return children_; }
  /// parent(), if there is one, and children().
  [[nodiscard]] const std::vector<int>& neighbours() const { return neighbours_; }
  /// The neighbour that is next on the way to `host`; -1 for this host.
  [[nodiscard]] int next_to(int host) const { return next_to_[static_cast<std::size_t>(host)]; }
  /// Whether `host` is this host's neighbour `child`, or is reached through it from host 0.
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
