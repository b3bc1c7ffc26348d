#include "observe/trace/timeline.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "folder.h"
#include "strict_json.h"

namespace hvdtune::testing::test_timeline {
namespace {

using testing::check_balanced;
using testing::Folder;
using testing::Json;
using testing::parse_json;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The file's events; throws unless it is valid and balanced.
Json read_trace(const std::string& path) {
  Json events = parse_json(read_file(path));
  check_balanced(events);
  return events;
}

int count(const Json& events, const std::string& phase, const std::string& name) {
  int found = 0;
  for (const Json& event : events.items) {
    found += event.at("ph").text == phase && event.string_or_empty("name") == name ? 1 : 0;
  }
  return found;
}

/// One life of a tensor on `ranks` ranks, from `t` on, 1 us between its events.
void record_step(Timeline& timeline, const std::string& tensor, int ranks, Nanos t) {
  const auto next = [&t] { return t += kMicrosecond; };
  timeline.negotiate_start(tensor, OpKind::kAllreduce, t);
  for (int rank = 0; rank < ranks; ++rank) timeline.rank_ready(tensor, rank, next());
  timeline.negotiate_end(tensor, t);
  timeline.op_start(tensor, "ALLREDUCE", next());
  timeline.activity_start(tensor, "MEMCPY_IN_FUSION_BUFFER", next());
  timeline.activity_end(tensor, next());
  timeline.op_end(tensor, next(), DType::kFloat32, "[2, 3]", 24, 9, true);
}

TEST(file_of_one_step_is_as_horovod_writes_it) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  const Nanos t = monotonic_now();
  timeline.cycle_start(t);
  record_step(timeline, "allreduce.a", 2, t);
  timeline.stop();
  timeline.join();

  const std::string text = read_file(folder.file("t.json"));
  const auto has = [&](const std::string& part) {
    CHECK_MSG(text.find(part) != std::string::npos, "no " << part << " in " << text);
  };
  const std::string head =
      "[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
      "{\"start_time_since_epoch_in_micros\":";
  CHECK_MSG(text.starts_with(head), text);
  has("\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": "
      "{\"sort_index\": 0}},\n");
  has("{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"args\": {\"name\": "
      "\"allreduce.a\"}},\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 1, "
      "\"args\": {\"sort_index\": 1}},\n{\"ph\": \"B\", \"name\": \"NEGOTIATE_ALLREDUCE\", "
      "\"ts\": ");
  has(", \"pid\": 1},{\"ph\": \"X\", \"name\": \"0\", \"ts\": ");
  has(", \"pid\": 1, \"dur\": 0}");
  has(", \"pid\": 1, \"args\": {\"dtype\": \"float32\", \"shape\": \"[2, 3]\", \"bytes\": 24, "
      "\"batch\": 9}}]");
  has("{\"ph\": \"i\", \"name\": \"CYCLE_START\", \"ts\": ");
  has(", \"s\": \"g\", \"pid\": 0}");
  const Json events = read_trace(folder.file("t.json"));
  CHECK_EQ(count(events, "X", "0"), 1);
  CHECK_EQ(count(events, "X", "1"), 1);
  CHECK_EQ(count(events, "B", "MEMCPY_IN_FUSION_BUFFER"), 1);
}

TEST(every_step_has_its_ticks_and_times_in_microseconds) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("t.json"), false), "");
  const Nanos t = monotonic_now() + kSecond;
  for (int step = 0; step < 50; ++step) record_step(timeline, "a", 3, t + step * kMillisecond);
  timeline.cycle_start(t);
  timeline.stop();
  timeline.join();
  const Json events = read_trace(folder.file("t.json"));
  for (const char* rank : {"0", "1", "2"}) CHECK_EQ(count(events, "X", rank), 50);
  CHECK_EQ(count(events, "i", "CYCLE_START"), 0);
  std::vector<long long> starts;
  for (const Json& event : events.items) {
    if (event.string_or_empty("name") == "NEGOTIATE_ALLREDUCE") {
      starts.push_back(event.at("ts").number);
    }
  }
  CHECK_EQ(starts.size(), 50U);
  CHECK_EQ(starts[1] - starts[0], 1000);
  CHECK(starts[0] >= 1'000'000);
}

TEST(any_name_makes_valid_json) {
  const Folder folder;
  Timeline timeline;
  const std::string nasty =
      "q\"b\\n\nt\tnul\x01" + std::string(1, '\0') + "\x7F\xC3\xA9\xE2\x82\xAC";
  const std::vector<std::string> broken = {
      "\xFF", "\xC3", "\xE2\x82", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\xAF"};
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  const Nanos t = monotonic_now();
  record_step(timeline, nasty, 1, t);
  for (const auto& name : broken) record_step(timeline, "x" + name + "y", 1, t);
  record_step(timeline, std::string(100'000, '"'), 1, t);
  record_step(timeline, "", 1, t);
  timeline.instant("stall of \"a\"\n", t);
  timeline.stop();
  timeline.join();
  const Json events = read_trace(folder.file("t.json"));
  std::vector<std::string> names;
  for (const Json& event : events.items) {
    const Json* args = event.find("args");
    if (args != nullptr && args->find("name") != nullptr) names.push_back(args->at("name").text);
  }
  CHECK_EQ(names.size(), broken.size() + 3);
  CHECK_EQ(names[0], nasty);
  for (std::size_t i = 0; i < broken.size(); ++i) {
    CHECK_MSG(names[1 + i].starts_with("x\xEF\xBF\xBD") && names[1 + i].ends_with("y"),
              names[1 + i]);
  }
  CHECK_EQ(count(events, "i", "stall of \"a\"\n"), 1);
}

TEST(failures_barriers_and_careless_callers_leave_balanced_events) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  Nanos t = monotonic_now();
  const auto next = [&t] { return t += kMicrosecond; };
  // Ends before any begin: the file was started in the middle.
  timeline.op_end("early", next(), DType::kInt8, "[1]", 1, 1, true);
  timeline.negotiate_end("early", next());
  timeline.activity_start("early", "QUEUE", next());
  timeline.activity_end("early", next());
  timeline.rank_ready("early", 0, next());
  // A failure inside an activity.
  timeline.op_start("failed", "ERROR", next());
  timeline.activity_start("failed", "SHM_ALLREDUCE", next());
  timeline.op_end("failed", next(), DType::kInt8, "[1]", 1, 1, false);
  // A barrier has no output.
  timeline.negotiate_start("barrier", OpKind::kBarrier, next());
  timeline.op_start("barrier", "BARRIER", next());
  timeline.op_end("barrier", next(), DType::kUint8, "", 0, 1, true);
  // Everything twice, and left open at the end.
  for (int i = 0; i < 2; ++i) timeline.negotiate_start("twice", OpKind::kAllgather, next());
  for (int i = 0; i < 2; ++i) timeline.op_start("twice", "ALLGATHER", next());
  for (int i = 0; i < 2; ++i) timeline.activity_start("twice", "QUEUE", next());
  timeline.stop();
  timeline.join();
  const std::string text = read_file(folder.file("t.json"));
  CHECK(text.find("dtype") == std::string::npos);
  CHECK(text.find("early") == std::string::npos);
  const Json events = read_trace(folder.file("t.json"));
  CHECK_EQ(count(events, "B", "ERROR"), 1);
  CHECK_EQ(count(events, "B", "BARRIER"), 1);
  CHECK_EQ(count(events, "B", "NEGOTIATE_BARRIER"), 1);
  CHECK_EQ(count(events, "X", "0"), 0);
}

TEST(next_negotiation_waits_for_the_running_operation) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  const Nanos t = monotonic_now() + kSecond;
  timeline.op_start("a", "ALLREDUCE", t);
  // Rank 1 has finished and announces its next step; rank 0 is still copying.
  timeline.negotiate_start("a", OpKind::kAllreduce, t + 10 * kMicrosecond);
  timeline.rank_ready("a", 1, t + 10 * kMicrosecond);
  timeline.op_end("a", t + 20 * kMicrosecond, DType::kInt32, "[1]", 4, 1, true);
  timeline.rank_ready("a", 0, t + 30 * kMicrosecond);
  timeline.negotiate_end("a", t + 30 * kMicrosecond);
  timeline.stop();
  timeline.join();
  const Json events = read_trace(folder.file("t.json"));
  std::string order;
  std::vector<long long> times;
  for (const Json& event : events.items) {
    if (event.at("ph").text == "M") continue;
    order += event.at("ph").text + event.string_or_empty("name") + " ";
    times.push_back(event.at("ts").number - 1'000'000);
  }
  CHECK_EQ(order, "BALLREDUCE X1 E BNEGOTIATE_ALLREDUCE X0 E ");
  CHECK_EQ(times[1] - times[0], 10);
  CHECK_EQ(times[3], times[2]);
}

TEST(full_ring_drops_counts_and_stays_balanced) {
  const Folder folder;
  Timeline timeline(64);
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  const Nanos t = monotonic_now();
  for (int step = 0; step < 5000; ++step) {
    record_step(timeline, "tensor" + std::to_string(step % 7), 4, t + step * kMillisecond);
  }
  const std::uint64_t dropped = timeline.dropped();
  timeline.stop();
  timeline.join();
  CHECK(dropped > 0);
  const Json events = read_trace(folder.file("t.json"));
  long long written = -1;
  for (const Json& event : events.items) {
    if (event.string_or_empty("name") == "DROPPED_EVENTS") {
      written = event.at("args").at("dropped").number;
    }
  }
  CHECK_EQ(written, static_cast<long long>(timeline.dropped()));
  CHECK(count(events, "B", "ALLREDUCE") > 0);
  // A tick stands inside a negotiation that was recorded, an activity inside its operation.
  CHECK(count(events, "X", "0") <= count(events, "B", "NEGOTIATE_ALLREDUCE"));
  CHECK(count(events, "B", "MEMCPY_IN_FUSION_BUFFER") <= count(events, "B", "ALLREDUCE"));
}

TEST(names_without_end_take_bounded_memory) {
  const Folder folder;
  Timeline timeline(1 << 16, 8);
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  const Nanos t = monotonic_now();
  // One operation of a row that is in use all the time must not lose its row.
  timeline.op_start("long", "ALLREDUCE", t);
  for (int i = 0; i < 100; ++i) record_step(timeline, "noname." + std::to_string(i), 1, t);
  timeline.op_end("long", t + kSecond, DType::kInt32, "[1]", 4, 1, true);
  // All rows busy: there is no room for one more.
  for (int i = 0; i < 8; ++i) timeline.op_start("busy" + std::to_string(i), "ALLREDUCE", t);
  CHECK_EQ(timeline.dropped(), 0U);
  timeline.op_start("one more", "ALLREDUCE", t);
  CHECK_EQ(timeline.dropped(), 1U);
  timeline.stop();
  timeline.join();
  const Json events = read_trace(folder.file("t.json"));
  CHECK_EQ(count(events, "M", "process_name"), 1 + 1 + 100 + 8);
  CHECK_EQ(count(events, "B", "ALLREDUCE"), 1 + 100 + 8);
}

TEST(start_and_stop_again) {
  const Folder folder;
  Timeline timeline;
  CHECK(!timeline.active());
  timeline.stop();
  timeline.join();
  record_step(timeline, "ignored", 1, monotonic_now());
  CHECK_EQ(timeline.start(folder.file("a.json"), false), "");
  CHECK(timeline.active());
  CHECK(!timeline.mark_cycles());
  record_step(timeline, "first", 1, monotonic_now());
  CHECK_EQ(timeline.start(folder.file("a.json"), true), "");  // goes on in the same file
  CHECK(timeline.mark_cycles());
  record_step(timeline, "second", 1, monotonic_now());
  CHECK_EQ(timeline.start(folder.file("b.json"), true), "");
  record_step(timeline, "second", 1, monotonic_now());
  timeline.stop();
  timeline.join();
  CHECK(!timeline.active());
  timeline.stop();
  timeline.join();
  record_step(timeline, "ignored", 1, monotonic_now());

  const Json first = read_trace(folder.file("a.json"));
  const Json second = read_trace(folder.file("b.json"));
  CHECK_EQ(count(first, "B", "ALLREDUCE"), 2);
  CHECK_EQ(count(second, "B", "ALLREDUCE"), 1);
  // The header repeats the anchor; row numbers begin again.
  CHECK_EQ(first.items[0].at("args").at("start_time_since_epoch_in_micros").number,
           second.items[0].at("args").at("start_time_since_epoch_in_micros").number);
  CHECK_EQ(second.items[2].at("pid").number, 1);

  CHECK_EQ(timeline.start(folder.file("a.json"), true), "");  // overwritten
  timeline.stop();
  timeline.join();
  CHECK_EQ(read_trace(folder.file("a.json")).items.size(), 2U);
}

TEST(unwritable_paths_are_refused_with_a_reason) {
  const Folder folder;
  Timeline timeline;
  const auto refused = [&](const std::string& path, const std::string& reason) {
    const std::string error = timeline.start(path, true);
    CHECK_MSG(error.find(path) != std::string::npos && error.find(reason) != std::string::npos,
              error);
    CHECK(!timeline.active());
    record_step(timeline, "ignored", 1, monotonic_now());
  };
  refused("/dev/null/t.json", "Not a directory");
  refused(folder.file(""), "Is a directory");
  refused("/dev/full", "not a regular file");
  refused(folder.file("t.json.gz"), "the name ends in .gz");
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  timeline.stop();
  timeline.join();
}

TEST(the_folder_of_a_file_is_made) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("no/such/t.json"), true), "");
  timeline.stop();
  timeline.join();
  CHECK(!read_trace(folder.file("no/such/t.json")).items.empty());
}

/// Runs `body` in a child that is expected to be killed or to exit with 0.
pid_t run_child(void (*body)(const std::string&), const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    body(path);
    _exit(0);
  }
  CHECK(child > 0);
  return child;
}

TEST(killed_at_any_moment_the_file_is_valid) {
  const Folder folder;
  std::mt19937 random(7);
  std::size_t largest = 0;
  for (int round = 0; round < 40; ++round) {
    const std::string path = folder.file(std::to_string(round) + ".json");
    const pid_t child = run_child(
        [](const std::string& name) {
          Timeline timeline;
          if (!timeline.start(name, true).empty()) _exit(1);
          for (int step = 0;; ++step) {
            for (int i = 0; i < 200; ++i) {
              record_step(timeline, "layer\"" + std::to_string(i), 8, monotonic_now());
            }
            usleep(500);
          }
        },
        path);
    while (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0) usleep(100);
    usleep(40'000 + random() % 100'000);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    const Json events = parse_json(read_file(path));
    CHECK(events.items.size() >= 2);
    largest = std::max(largest, events.items.size());
  }
  CHECK_MSG(largest > 2000, largest);  // there was something to tear
}

TEST(full_disk_ends_recording_and_leaves_a_valid_file) {
  const Folder folder;
  const std::string path = folder.file("t.json");
  const pid_t child = run_child(
      [](const std::string& name) {
        const rlimit limit{20'000, 20'000};
        setrlimit(RLIMIT_FSIZE, &limit);
        if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);  // the warning
        Timeline timeline;
        if (!timeline.start(name, true).empty()) _exit(2);
        const Nanos deadline = monotonic_now() + 20 * kSecond;
        while (timeline.active()) {
          if (monotonic_now() > deadline) _exit(3);
          record_step(timeline, "a", 8, monotonic_now());
          usleep(5000);
        }
        record_step(timeline, "a", 8, monotonic_now());
        timeline.stop();
        timeline.join();
      },
      path);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  const std::string text = read_file(path);
  CHECK(text.size() <= 20'000);
  CHECK_EQ(text.back(), ']');
  CHECK(parse_json(text).items.size() > 2);
}

TEST(forked_child_neither_hangs_nor_touches_the_file) {
  const Folder folder;
  Timeline timeline;
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  record_step(timeline, "a", 2, monotonic_now());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    timeline.stop();
    timeline.join();
    timeline.stop();
    timeline.join();
    _exit(timeline.active() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  record_step(timeline, "a", 2, monotonic_now());
  timeline.stop();
  timeline.join();
  CHECK_EQ(count(read_trace(folder.file("t.json")), "B", "ALLREDUCE"), 2);
}

// The thread sanitizer cannot follow a child that starts threads after it was forked beside others:
// it takes the new thread for the parent's, whose memory it reuses.
#ifndef __SANITIZE_THREAD__
TEST(a_forked_child_leaves_a_file_that_was_stopped_alone) {
  const Folder folder;
  auto timeline = std::make_unique<Timeline>();
  CHECK_EQ(timeline->start(folder.file("t.json"), true), "");
  for (int i = 0; i < 1000; ++i) record_step(*timeline, "a", 2, monotonic_now());
  timeline->stop();  // it may still be written
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    timeline->join();
    if (!timeline->start(folder.file("child.json"), true).empty()) _exit(1);
    record_step(*timeline, "b", 2, monotonic_now());
    timeline->stop();
    timeline.reset();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  timeline->join();
  CHECK_EQ(count(read_trace(folder.file("t.json")), "B", "ALLREDUCE"), 1000);
  CHECK_EQ(count(read_trace(folder.file("child.json")), "B", "ALLREDUCE"), 1);
}
#endif

TEST(files_follow_one_another_without_waiting) {
  const Folder folder;
  Timeline timeline;
  for (int number = 0; number < 20; ++number) {
    CHECK_EQ(timeline.start(folder.file(std::to_string(number)), true), "");
    for (int i = 0; i <= number; ++i) record_step(timeline, "a", 2, monotonic_now());
    timeline.stop();
    timeline.stop();
  }
  // The same file again: not before the last one is whole.
  CHECK_EQ(timeline.start(folder.file("19"), true), "");
  record_step(timeline, "a", 2, monotonic_now());
  timeline.stop();
  timeline.join();
  for (int number = 0; number < 20; ++number) {
    const int steps = number == 19 ? 1 : number + 1;
    const auto trace = read_trace(folder.file(std::to_string(number)));
    CHECK_EQ(count(trace, "B", "ALLREDUCE"), steps);
  }
}

TEST(producers_take_turns_under_a_lock) {
  const Folder folder;
  Timeline timeline(1 << 12);
  CHECK_EQ(timeline.start(folder.file("t.json"), true), "");
  std::mutex lock;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 300; ++i) {
        {
          const std::lock_guard guard(lock);
          record_step(timeline, "of thread " + std::to_string(thread), 4, monotonic_now());
        }
        if (i % 50 == 0) usleep(1000);
        static_cast<void>(timeline.active() && timeline.dropped() > 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const std::uint64_t dropped = timeline.dropped();
  timeline.stop();
  timeline.join();
  const int recorded = count(read_trace(folder.file("t.json")), "B", "ALLREDUCE");
  CHECK(dropped > 0 || recorded == 4 * 300);
}

}  // namespace
}  // namespace hvdtune::testing::test_timeline
