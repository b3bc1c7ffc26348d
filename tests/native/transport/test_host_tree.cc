// The tree of hosts: every host is reached, by the same way from both ends.
#include <algorithm>
#include <vector>

#include "check.h"
#include "transport/control/host_tree.h"

namespace hvdtune::testing::test_host_tree {
namespace {

bool contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

void check_tree(int hosts, int fanout) {
  std::vector<HostTree> trees;
  for (int own = 0; own < hosts; ++own) trees.emplace_back(hosts, own, fanout);
  const auto tree = [&](int host) -> const HostTree& {
    return trees[static_cast<std::size_t>(host)];
  };
  for (int own = 0; own < hosts; ++own) {
    const int parent = tree(own).parent();
    CHECK_EQ(parent == -1, own == 0);
    if (own != 0) CHECK(contains(tree(parent).children(), own));
    CHECK(static_cast<int>(tree(own).children().size()) <= fanout);
    CHECK_EQ(tree(own).neighbours().size(), tree(own).children().size() + (own == 0 ? 0 : 1));
    CHECK_EQ(tree(own).next_to(own), -1);
    for (int host = 0; host < hosts; ++host) {
      if (host == own) continue;
      int at = own;
      for (int steps = 0; at != host; ++steps) {
        CHECK(steps < hosts);
        CHECK(contains(tree(at).neighbours(), tree(at).next_to(host)));
        at = tree(at).next_to(host);
      }
      const int next = tree(own).next_to(host);
      CHECK_EQ(tree(own).is_below(next, host), next != parent);
      CHECK(own == 0 || !tree(own).is_below(parent, host));
    }
  }
}

}  // namespace

TEST(every_host_is_reached_from_every_other) {
  for (const int fanout : {1, 2, 3, 15}) {
    for (const int hosts : {1, 2, 3, 7, 16, 17, 40}) check_tree(hosts, fanout);
  }
}

TEST(few_hosts_are_a_star) {
  const HostTree root(16, 0, 15);
  CHECK_EQ(root.children().size(), std::size_t{15});
  for (int host = 1; host < 16; ++host) {
    CHECK_EQ(HostTree(16, host, 15).parent(), 0);
    CHECK(HostTree(16, host, 15).children().empty());
  }
}

TEST(one_more_is_below_another) {
  CHECK_EQ(HostTree(17, 16, 15).parent(), 1);
  CHECK_EQ(HostTree(17, 0, 15).next_to(16), 1);
  CHECK(HostTree(17, 1, 15).children() == std::vector<int>{16});
}

}  // namespace hvdtune::testing::test_host_tree
