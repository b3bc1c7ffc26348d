// The files of captures: kept small, on disks that are slow, full or not there, one after the
// other.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "capture_files.h"
#include "check.h"
#include "folder.h"
#include "observe/capture/capture.h"
#include "observe/trace/file_claim.h"
#include "observe/trace/trace_file.h"

namespace hvdtune::testing::test_capture_files {

using namespace capture;  // NOLINT: it is what this file tests

using testing::Folder;

TEST(the_oldest_blocks_go_and_names_stay) {
  const Folder folder;
  const std::string path = folder.file("t");
  Capture capture;
  Options options = options_for(path);
  options.file_limit = 1 << 20;
  CHECK_EQ(capture.start(options), "");
  const std::uint32_t name = name_one(capture, "kept");
  std::uint64_t serial = 0;
  std::size_t largest = 0;
  while (read_file(path).find("hvdtune_rotated") == std::string::npos || serial < 100) {
    // Less than half of the limit, which stays, and written before there is more.
    const std::string before = read_file(path);
    for (int i = 0; i < 20; ++i) record_batch(capture, serial++, name, 1000);
    while (read_file(path) == before) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    largest = std::max(largest, read_file(path).size());
  }
  capture.end("");
  capture.join();
  CHECK(largest <= options.file_limit);
  const Json events = parse_json(read_file(path));
  CHECK_EQ(items(events, "names").at(name)->items.at(1).text, "kept");
  const auto batches = records<Batch>(events, "batches");
  CHECK(!batches.empty());
  CHECK(batches.front().serial > 0);
  CHECK_EQ(batches.back().serial, serial - 1);
  for (std::size_t i = 1; i < batches.size(); ++i) {
    CHECK_EQ(batches[i].serial, batches[i - 1].serial + 1);
  }
  CHECK(!std::filesystem::exists(path + ".new"));
}

TEST(batches_stay_with_their_tensors_when_the_oldest_go) {
  const Folder folder;
  const std::string path = folder.file("t");
  Capture capture(std::size_t{64} << 20);
  Options options = options_for(path);
  options.file_limit = 1 << 20;
  CHECK_EQ(capture.start(options), "");
  const std::uint32_t name = name_one(capture, "n");
  // A backlog of many times the limit, all there before much of it is written.
  constexpr std::uint64_t kBatches = 2000;
  constexpr std::size_t kTensors = 500;
  for (std::uint64_t serial = 0; serial < kBatches; ++serial) {
    record_batch(capture, serial, name, kTensors);
  }
  capture.end("");
  capture.join();
  const Json events = parse_json(read_file(path));
  CHECK(!events_named(events, "hvdtune_rotated").empty());
  CHECK(events_named(events, "hvdtune_dropped").empty());
  std::map<std::uint32_t, std::size_t> tensors;
  for (const Tensor& tensor : records<Tensor>(events, "tensors")) ++tensors[tensor.batch];
  const auto batches = records<Batch>(events, "batches");
  CHECK_EQ(batches.back().serial, kBatches - 1);
  std::size_t whole = 0;
  for (const Batch& batch : batches) {
    whole += tensors[static_cast<std::uint32_t>(batch.serial)] == kTensors ? 1U : 0U;
  }
  CHECK(whole > 10);
  CHECK(batches.size() - whole <= 1);  // what an append has cut in two
  CHECK(tensors.size() <= batches.size() + 1);
}

TEST(a_slow_end_of_a_file_holds_up_nobody) {
  const Folder folder;
  std::atomic<int> ending{0};
  std::atomic<bool> may_end{false};
  Capture capture(1 << 20, [&](const std::string& problem, bool recorded) {
    CHECK_EQ(problem, "");
    CHECK(!recorded);
    ++ending;
    while (!may_end) std::this_thread::yield();
  });
  const auto record = [&](const std::string& file) {
    CHECK_EQ(capture.start(options_for(folder.file(file))), "");
    const std::uint32_t name = name_one(capture, "n" + file);
    record_batch(capture, 1, name, 3);
    capture.mark(MarkKind::kUser, 0, "t" + file);
    CHECK(capture.end("end of " + file));
  };
  record("1");
  while (ending < 1) std::this_thread::yield();
  std::thread joins([&] { capture.join(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // Whoever trains, and the engine, go on.
  CHECK(!capture.step());
  capture.settings(1, "{}");
  record("2");
  while (ending < 2) std::this_thread::yield();
  std::atomic<bool> third{false};
  std::thread starts([&] {  // both files are being written: this one has to wait
    record("1");
    third = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!third);
  may_end = true;
  joins.join();
  starts.join();
  capture.join();
  CHECK_EQ(ending.load(), 3);
  for (const std::string file : {"1", "2"}) {
    const Json events = parse_json(read_file(folder.file(file)));
    CHECK_EQ(items(events, "names").at(0)->items.at(1).text, "n" + file);
    CHECK_EQ(items(events, "texts").size(), 2U);  // the mark's, and the settings
    CHECK_EQ(records<Tensor>(events, "tensors").size(), 3U);
    CHECK_EQ(events.items.back().at("args").at("reason").text, "end of " + file);
  }
}

TEST(the_same_file_is_not_begun_before_it_has_ended) {
  const Folder folder;
  const std::string path = folder.file("t");
  std::atomic<int> ending{0};
  std::atomic<bool> may_end{false};
  Capture capture(1 << 20, [&](const std::string&, bool) {
    ++ending;
    while (!may_end) std::this_thread::yield();
  });
  CHECK_EQ(capture.start(options_for(path)), "");
  capture.end("first");
  while (ending < 1) std::this_thread::yield();
  std::atomic<bool> begun{false};
  std::thread starts([&] {
    CHECK_EQ(capture.start(options_for(path)), "");
    begun = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!begun);
  may_end = true;
  starts.join();
  capture.end("second");
  capture.join();
  const Json events = parse_json(read_file(path));
  CHECK_EQ(events.items.back().at("args").at("reason").text, "second");
}

TEST(a_file_that_fails_at_its_end_does_not_end_the_next_one) {
  const Folder folder;
  std::atomic<int> ended{0};
  const pid_t child = fork();
  if (child == 0) {
    _exit([&] {
      std::atomic<int> problems{0};
      Capture capture(1 << 20, [&](const std::string& problem, bool recorded) {
        // It had ended: the recording that goes on has no problem.
        if (!problem.empty()) problems += recorded ? 100 : 1;
        ++ended;
      });
      if (!capture.start(options_for(folder.file("1"))).empty()) return 1;
      const std::uint32_t name = name_one(capture, "n");
      record_batch(capture, 1, name, 10'000);
      const rlimit limit{20'000, 20'000};
      setrlimit(RLIMIT_FSIZE, &limit);  // what is recorded has no room any more
      capture.end("");
      if (!capture.start(options_for(folder.file("2"))).empty()) return 2;
      while (ended < 1) std::this_thread::yield();
      if (problems != 1 || !capture.active() || !capture.open()) return 3;
      capture.end("");
      capture.join();
      return problems == 1 ? 0 : 4;
    }());
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  for (const char* file : {"1", "2"}) parse_json(read_file(folder.file(file)));
}

TEST(a_claimed_file_is_nobody_elses_at_any_moment) {
  const Folder folder;
  const std::string path = folder.file("t"), enough = folder.file("enough");
  FileClaim claim;
  CHECK_EQ(claim.take(path, 1), "");
  const pid_t child = fork();
  if (child == 0) {
    while (!std::filesystem::exists(enough)) {
      const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (file >= 0 && !lock_file(file)) _exit(1);
      close(file);
    }
    _exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  Capture capture;
  Options options = options_for(path);
  options.claimed = claim.hand_over();
  CHECK_EQ(capture.start(options), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::ofstream(enough).put('.');
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

TEST(looking_who_uses_files_keeps_nobody_from_them) {
  const Folder folder;
  const std::string path = folder.file("t.json"), enough = folder.file("enough");
  std::ofstream(path_of_rank(path, 1)).put('.');
  const pid_t child = fork();
  if (child == 0) {
    while (!std::filesystem::exists(enough)) {
      FileClaim claim;
      if (!claim.take(path, 2).empty()) _exit(1);
    }
    _exit(0);
  }
  bool refused = false;
  for (int i = 0; i < 2000 && !refused; ++i) {
    const int file = open(path_of_rank(path, 1).c_str(), O_RDWR | O_CLOEXEC);
    refused = lock_file(file).has_value();
    close(file);
  }
  std::ofstream(enough).put('.');
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(!refused);
}

TEST(a_file_that_cannot_be_written) {
  const Folder folder;
  Capture capture;
  CHECK(capture.start(options_for("/dev/null/t")).find("Not a directory") != std::string::npos);
  CHECK(!capture.active());
  CHECK(!capture.open());
  CHECK_EQ(capture.start(options_for(folder.file("t"))), "");
}

TEST(a_disk_that_fills_up_ends_the_recording) {
  const Folder folder;
  const std::string path = folder.file("t");
  const pid_t child = fork();
  if (child == 0) {
    _exit([&] {
      const rlimit limit{20000, 20000};
      setrlimit(RLIMIT_FSIZE, &limit);
      std::atomic<int> problems{0};
      Capture capture(Capture::kDefaultBytes, [&](const std::string& problem, bool recorded) {
        if (!recorded) return;
        if (!problem.empty() && problem.find(path) != std::string::npos) ++problems;
      });
      if (!capture.start(options_for(path)).empty()) return 1;
      const std::uint32_t name = name_one(capture, "t");
      for (std::uint64_t serial = 0; capture.active(); ++serial) {
        record_batch(capture, serial, name, 10);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      capture.end("");
      capture.join();
      return problems == 1 ? 0 : 2;
    }());
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  parse_json(read_file(path));
}

TEST(who_wants_to_join_a_file_does_not_end_its_recording) {
  const Folder folder;
  const std::string path = folder.file("t");
  TraceFile file;
  CHECK_EQ(file.open(path, "1"), "");
  const int joiner = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK_EQ(flock(joiner, LOCK_EX | LOCK_NB), 0);
  CHECK(file.append(",2"));
  close(joiner);  // also ends the lock, which is taken again
  CHECK(file.append(",3"));
  file.close();
  CHECK_EQ(read_file(path), "[\n1,2,3]");
}

TEST(a_link_stays_when_the_oldest_blocks_go) {
  const Folder folder;
  std::filesystem::create_directory(folder.file("disk"));
  const std::string path = folder.file("t");
  const std::string place = folder.file("disk/t");
  std::filesystem::create_symlink(place, path);
  Capture capture(std::size_t{64} << 20);
  Options options = options_for(path);
  options.file_limit = 1 << 20;
  CHECK_EQ(capture.start(options), "");
  const std::uint32_t name = name_one(capture, "n");
  for (std::uint64_t serial = 0; serial < 2000; ++serial) record_batch(capture, serial, name, 500);
  capture.end("");
  capture.join();
  CHECK(std::filesystem::is_symlink(path));
  CHECK(!events_named(parse_json(read_file(place)), "hvdtune_rotated").empty());
  CHECK(!std::filesystem::exists(path + ".new"));
}

}  // namespace hvdtune::testing::test_capture_files
