// How many CPUs a process may use: quotas of control groups, laid out in a temporary directory.

#include "base/cpu/cpu.h"

#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"

namespace hvdtune::testing::test_cpu {
namespace {

namespace fs = std::filesystem;

/// A directory with a file `membership` and a tree of groups `mount`, removed at the end.
class Groups {
 public:
  explicit Groups(const std::string& membership) {
    std::string name = (fs::temp_directory_path() / "hvdtune-cpu-XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    fs::create_directory(directory_ / "mount");
    std::ofstream(directory_ / "membership") << membership;
  }
  ~Groups() { fs::remove_all(directory_); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  /// Writes a file of a group below the mount.
  void write(const std::string& file, const std::string& text) const {
    const fs::path path = directory_ / "mount" / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  /// The quota, or -1 for none.
  double quota() const {
    return cgroup_quota(directory_ / "membership", directory_ / "mount").value_or(-1);
  }

 private:
  fs::path directory_;
};

TEST(tightest_group_on_the_way_to_the_root_counts) {
  const Groups groups("0::/jobs/mine\n");
  CHECK_EQ(groups.quota(), -1.0);
  groups.write("jobs/mine/cpu.max", "max 100000");
  groups.write("jobs/other/cpu.max", "50000 100000");
  CHECK_EQ(groups.quota(), -1.0);
  groups.write("jobs/cpu.max", "150000 100000");
  CHECK_EQ(groups.quota(), 1.5);
  groups.write("cpu.max", "400000 100000");
  CHECK_EQ(groups.quota(), 1.5);
  groups.write("jobs/mine/cpu.max", "25000 50000");
  CHECK_EQ(groups.quota(), 0.5);
}

TEST(version_1_and_the_files_of_a_container) {
  const Groups groups("4:memory:/m\n3:cpu,cpuacct:/docker/abc\n");
  groups.write("cpu,cpuacct/cpu.cfs_quota_us", "200000");
  groups.write("cpu,cpuacct/cpu.cfs_period_us", "100000");
  CHECK_EQ(groups.quota(), 2.0);
  groups.write("cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1");
  groups.write("cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000");
  CHECK_EQ(groups.quota(), 2.0);
  const Groups swapped("3:cpuacct,cpu:/docker/abc\n");
  swapped.write("cpu/docker/cpu.cfs_quota_us", "300000");
  swapped.write("cpu/docker/cpu.cfs_period_us", "100000");
  CHECK_EQ(swapped.quota(), 3.0);
}

TEST(a_group_outside_of_the_container_leaves_the_mount) {
  const Groups groups("0::/../../elsewhere\n");
  groups.write("cpu.max", "300000 100000");
  CHECK_EQ(groups.quota(), 3.0);
}

TEST(unreadable_and_senseless_files_set_no_limit) {
  const Groups groups("cpu\n0::\n");
  groups.write("cpu.max", "some words");
  CHECK_EQ(groups.quota(), -1.0);
  CHECK(!cgroup_quota("/nowhere/membership", "/nowhere/mount").has_value());
}

TEST(usable_cpus_are_at_most_those_of_the_affinity_mask) {
  cpu_set_t mask;
  CHECK_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  CHECK(usable_cpus() >= 1);
  CHECK(usable_cpus() <= CPU_COUNT(&mask));
}

}  // namespace
}  // namespace hvdtune::testing::test_cpu
