// What is recorded of CPUs at the end of steps.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu/cpu_wait.h"
#include "capture_files.h"
#include "check.h"
#include "folder.h"
#include "observe/capture/capture.h"

namespace hvdtune::testing::test_capture_cpus {

using namespace capture;  // NOLINT: it is what this file tests
namespace {

using testing::Folder;

/// Readings of a counter.
std::vector<Counter> readings(const std::string& path, const std::string& wanted) {
  const Json events = parse_json(read_file(path));
  std::vector<Counter> found;
  for (const Counter& counter : records<Counter>(events, "counters")) {
    const std::string& name = items(events, "texts").at(counter.counter)->items.at(1).text;
    if (name == wanted) found.push_back(counter);
  }
  return found;
}

TEST(what_cpus_did_is_read_once_for_many_short_steps) {
  const Folder folder;
  Capture capture;
  capture.step();
  CHECK_EQ(capture.start(options_for(folder.file("t"))), "");
  const Nanos begin = monotonic_now();
  while (monotonic_now() < begin + 60 * kMillisecond) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    capture.step();
  }
  capture.end("");
  capture.join();
  std::vector<Nanos> times;
  for (const Counter& counter : readings(folder.file("t"), "CPUs in use"))
    times.push_back(counter.time);
  CHECK(!times.empty());
  for (std::size_t i = 1; i < times.size(); ++i)
    CHECK(times[i] - times[i - 1] >= 10 * kMillisecond);
  // Each at the end of a step.
  std::set<Nanos> ends;
  for (const Mark& mark : records<Mark>(parse_json(read_file(folder.file("t"))), "marks")) {
    if (mark.kind == MarkKind::kStep) ends.insert(mark.time);
  }
  for (const Nanos time : times) CHECK(ends.contains(time));
}

/// Another thread that wants the CPU of the one that makes it, while it lives.
class Rival {
 public:
  Rival() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_getaffinity(0, sizeof(before_), &before_);
    sched_setaffinity(0, sizeof(one), &one);
    thread_ = std::thread([this] {
      while (!over_) {
      }
    });
  }
  ~Rival() {
    over_ = true;
    thread_.join();
    sched_setaffinity(0, sizeof(before_), &before_);
  }
  Rival(const Rival&) = delete;
  Rival& operator=(const Rival&) = delete;

 private:
  cpu_set_t before_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(waiting_for_a_cpu_while_blocked_in_an_operation_is_not_the_program_s) {
  if (!cpu_wait_of_this_thread()) return;  // such a kernel
  const Folder folder;
  Capture capture;
  capture.step();
  CHECK_EQ(capture.start(options_for(folder.file("t"))), "");
  const Rival rival;
  // In the step this thread is kept waiting for 40 ms at least, and blocked for half of that.
  const auto wait = [] { return *cpu_wait_of_this_thread(); };
  const auto stand_for = [&wait](Nanos time) {
    for (const Nanos begin = wait(); wait() < begin + time;) {
    }
  };
  const Nanos before_first = wait();
  capture.step();
  const Nanos after_first = wait();
  stand_for(20 * kMillisecond);
  const Nanos blocked = wait();
  stand_for(20 * kMillisecond);
  const Nanos while_blocked = wait() - blocked;
  Capture::waited_while_blocked(while_blocked);
  const Nanos before_last = wait();
  capture.step();
  const Nanos after_last = wait();
  capture.end("");
  capture.join();
  const std::vector<Counter> found = readings(folder.file("t"), "CPUs waited for");
  CHECK_EQ(found.size(), 1U);
  std::vector<Nanos> ends;
  for (const Mark& mark : records<Mark>(parse_json(read_file(folder.file("t"))), "marks")) {
    if (mark.kind == MarkKind::kStep) ends.push_back(mark.time);
  }
  const Nanos step = ends.back() - ends[ends.size() - 2];
  const auto waited = static_cast<Nanos>(found[0].value * static_cast<double>(step));
  CHECK(waited >= before_last - after_first - while_blocked - 1);
  CHECK(waited <= after_last - before_first - while_blocked + 1);
}

}  // namespace
}  // namespace hvdtune::testing::test_capture_cpus
