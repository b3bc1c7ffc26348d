#include "observe/capture/capture.h"

#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu/cpu_wait.h"
#include "capture_files.h"
#include "check.h"
#include "folder.h"
#include "observe/trace/base64.h"
#include "threads.h"

namespace hvdtune::testing::test_capture {

using namespace capture;  // NOLINT: it is what this file tests

using testing::Folder;

TEST(base64_of_every_length_decodes_to_what_it_was) {
  CHECK_EQ(
      [] {
        std::string s;
        append_base64(s, "Man", 3);
        return s;
      }(),
      "TWFu");
  CHECK_EQ(
      [] {
        std::string s;
        append_base64(s, "Ma", 2);
        return s;
      }(),
      "TWE=");
  CHECK_EQ(
      [] {
        std::string s;
        append_base64(s, "M", 1);
        return s;
      }(),
      "TQ==");
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    std::string text = "before";
    append_base64(text, bytes.data(), bytes.size());
    CHECK_EQ(text.size(), 6 + (bytes.size() + 2) / 3 * 4);
    CHECK_EQ(decoded(text.substr(6)), bytes);
    bytes += static_cast<char>(i * 151 + 7);
  }
}

TEST(a_ring_gives_back_what_was_put_in_order) {
  RecordRing<int> ring(10);
  CHECK_EQ(ring.capacity(), 8U);
  int put = 0;
  int taken = 0;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < round % 9 && ring.has_room(1); ++i) ring.put(put++);
    ring.publish();
    ring.take(round % 5, [&](const int* records, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) CHECK_EQ(records[i], taken++);
    });
    CHECK(put - taken <= 8);
  }
  CHECK(taken > 100);
  CHECK(!ring.has_room(9));
}

TEST(a_shared_ring_takes_what_has_room) {
  SharedRing<int> ring(4);
  int record = 0;
  CHECK(!ring.take(record));
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) CHECK(ring.put(10 * round + i));
    CHECK(!ring.put(99));
    for (int i = 0; i < 4; ++i) {
      CHECK(ring.take(record));
      CHECK_EQ(record, 10 * round + i);
    }
    CHECK(!ring.take(record));
  }
}

TEST(a_shared_ring_keeps_the_order_of_each_thread) {
  constexpr std::uint64_t kThreads = 3;
  constexpr std::uint64_t kEach = 5000;
  SharedRing<std::uint64_t> ring(64);
  testing::run_threads(kThreads + 1, [&](int index) {
    const auto thread = static_cast<std::uint64_t>(index);
    for (std::uint64_t n = 0; thread < kThreads && n < kEach;) {
      if (ring.put(n * kThreads + thread)) {
        ++n;
      } else {
        std::this_thread::yield();
      }
    }
    std::array<std::uint64_t, kThreads> next{};
    std::uint64_t record = 0;
    for (std::uint64_t taken = 0; thread == kThreads && taken < kThreads * kEach;) {
      if (!ring.take(record)) {
        std::this_thread::yield();
        continue;
      }
      ++taken;
      CHECK_EQ(record / kThreads, next[record % kThreads]++);
    }
  });
}

TEST(what_was_recorded_is_in_the_file) {
  const Folder folder;
  const std::string path = folder.file("t.json");
  Capture capture;
  CHECK(!capture.active());
  CHECK(!capture.process_set(7, 1, {}));
  capture.mark(MarkKind::kUser, 1, "before: nothing");
  capture.settings(4, "{\"x\":1}");
  CHECK_EQ(capture.start(options_for(path)), "");
  CHECK(capture.active());
  const std::string nasty = "a \"b\"\\\n\x01 \xC3\xA9 \xFF";
  const std::array<Named, 2> group = {{{nasty, 7, OpKind::kAllgather, DType::kBfloat16, 24},
                                       {"second", 7, OpKind::kAllgather, DType::kBool, 3}}};
  CHECK_EQ(capture.name(group), 0U);
  CHECK_EQ(name_one(capture, "third"), 2U);
  record_batch(capture, (1ULL << 32) + 5, 1, 3);
  capture.wait({10, 20, 2, 77});
  capture.mark(MarkKind::kUser, -3, nasty);
  capture.mark(MarkKind::kStall, 0, nasty);
  capture.counter("GB/s", 2.5);
  capture.clock(5, -6, 7);
  CHECK(capture.process_set(7, (1ULL << 32) + 5, std::array{1, 4}));
  capture.ready({11, 2, 1});
  CHECK(capture.end("enough"));
  capture.join();
  CHECK(!capture.active());

  const Json events = parse_json(read_file(path));
  const Json& identity = events.items.at(0);
  CHECK_EQ(identity.at("name").text, "hvdtune_identity");
  CHECK_EQ(identity.at("pid").number, 3);
  CHECK_EQ(identity.at("args").at("job").text, "j");
  CHECK_EQ(identity.at("args").at("format").number, kFormat);
  const auto names = items(events, "names");
  CHECK_EQ(names.size(), 3U);
  CHECK_EQ(names.at(0)->items.at(1).text, "a \"b\"\\\n\x01 \xC3\xA9 \xEF\xBF\xBD");
  CHECK_EQ(names.at(0)->items.at(2).number, 7);
  CHECK_EQ(names.at(0)->items.at(3).text, "allgather");
  CHECK_EQ(names.at(0)->items.at(4).text, "bfloat16");
  CHECK_EQ(names.at(1)->items.at(5).number, 3);
  const auto sets = events_named(events, "hvdtune_set");
  CHECK_EQ(sets.size(), 1U);
  CHECK_EQ(sets[0]->at("args").at("process_set").number, 7);
  CHECK_EQ(sets[0]->at("args").at("batch").number, 4294967301);
  CHECK_EQ(sets[0]->at("args").at("ranks").items.at(1).number, 4);
  const auto tensors = records<Tensor>(events, "tensors");
  CHECK_EQ(tensors.size(), 3U);
  CHECK_EQ(tensors[2].batch, 5U);
  CHECK_EQ(tensors[2].submitted, 2);
  const auto batches = records<Batch>(events, "batches");
  CHECK_EQ(batches.size(), 1U);
  CHECK_EQ(batches[0].serial, (1ULL << 32) + 5);
  CHECK_EQ(records<Wait>(events, "waits").at(0).thread, 77U);
  CHECK_EQ(records<Ready>(events, "ready").at(0).time, 11);
  const auto marks = records<Mark>(events, "marks");
  CHECK_EQ(marks.size(), 5U);  // begin, settings, two, end
  CHECK(marks[0].kind == MarkKind::kWindow && marks[0].value == 1);
  CHECK(marks[1].kind == MarkKind::kSettings && marks[1].value == 4);
  CHECK_EQ(marks[2].value, -3);
  CHECK_EQ(marks[2].text, marks[3].text);
  CHECK(marks[4].kind == MarkKind::kWindow && marks[4].value == 0);
  const auto texts = items(events, "texts");
  CHECK_EQ(texts.size(), 3U);
  CHECK_EQ(texts.at(marks[1].text)->items.at(1).text, "{\"x\":1}");
  const auto counters = records<Counter>(events, "counters");
  CHECK_EQ(texts.at(counters.at(0).counter)->items.at(1).text, "GB/s");
  CHECK(counters[0].value == 2.5);
  CHECK_EQ(events_named(events, "hvdtune_clock").at(0)->at("args").at("offset_ns").number, -6);
  CHECK_EQ(events.items.back().at("args").at("reason").text, "enough");
}

TEST(every_file_begins_anew) {
  const Folder folder;
  Capture capture;
  for (const std::string name : {"1", "2"}) {
    CHECK_EQ(capture.start(options_for(folder.file(name))), "");
    const std::uint32_t generation = capture.generation();
    CHECK_EQ(name_one(capture, "n" + name), 0U);
    capture.mark(MarkKind::kUser, 0, "t" + name);
    record_batch(capture, 1, 0, 1);
    CHECK_EQ(capture.generation(), generation);
  }
  capture.end("");
  capture.join();
  for (const std::string name : {"1", "2"}) {
    const Json events = parse_json(read_file(folder.file(name)));
    CHECK_EQ(items(events, "names").at(0)->items.at(1).text, "n" + name);
    CHECK_EQ(items(events, "texts").at(0)->items.at(1).text, "t" + name);
    CHECK_EQ(records<Tensor>(events, "tensors").size(), 1U);
  }
}

TEST(what_finds_its_ring_full_is_counted) {
  const Folder folder;
  Capture capture(1 << 20);
  CHECK_EQ(capture.start(options_for(folder.file("t"))), "");
  const std::uint32_t name = name_one(capture, "t");
  constexpr std::uint64_t kBatches = 200;
  constexpr std::size_t kTensors = 10000;
  for (std::uint64_t serial = 0; serial < kBatches; ++serial) {
    record_batch(capture, serial, name, kTensors);
  }
  record_batch(capture, kBatches, name, 1 << 20);  // can never have room
  capture.end("");
  capture.join();
  const Json events = parse_json(read_file(folder.file("t")));
  const Json& dropped = events_named(events, "hvdtune_dropped").back()->at("args");
  const auto kept = records<Tensor>(events, "tensors").size();
  CHECK_EQ(kept + static_cast<std::size_t>(dropped.at("tensors").number),
           kBatches * kTensors + (1 << 20));
  CHECK_EQ(kept % kTensors, 0U);
  CHECK_EQ(records<Batch>(events, "batches").size(), kBatches + 1);
}

TEST(names_that_are_not_written_in_time_are_refused_not_kept) {
  const Folder folder;
  Capture capture(1 << 20);
  CHECK_EQ(capture.start(options_for(folder.file("t"))), "");
  const std::string longest(4000, 'x');
  std::size_t refused = 0;
  for (int i = 0; i < 2000; ++i) refused += name_one(capture, longest) == kNone ? 1U : 0U;
  CHECK(refused > 0);
  capture.end("");
  capture.join();
  CHECK_EQ(items(parse_json(read_file(folder.file("t"))), "names").size(), 2000 - refused);
}

TEST(a_window_of_steps) {
  const Folder folder;
  Capture capture;
  capture.step();
  CHECK_EQ(capture.start(options_for(folder.file("t"), {3, 5})), "");
  CHECK(capture.open());
  std::uint32_t name = kNone;
  for (std::int64_t step = 2; step <= 8; ++step) {
    CHECK_EQ(capture.active(), step == 3 || step == 4);
    if (capture.active() && name == kNone) name = name_one(capture, "n");
    record_batch(capture, static_cast<std::uint64_t>(step), name, 1);
    if (step == 4) capture.communicated(kSecond);
    if (capture.active()) std::this_thread::sleep_for(std::chrono::milliseconds(11));
    CHECK_EQ(capture.step(), step == 2 || step == 4);
  }
  CHECK(!capture.open());
  CHECK(capture.end(""));
  capture.join();
  const Json events = parse_json(read_file(folder.file("t")));
  const auto tensors = records<Tensor>(events, "tensors");
  CHECK_EQ(tensors.size(), 2U);
  CHECK_EQ(tensors[0].batch, 3U);
  std::vector<std::int64_t> steps;
  for (const Mark& mark : records<Mark>(events, "marks")) {
    if (mark.kind == MarkKind::kStep) steps.push_back(mark.value);
  }
  CHECK(steps == (std::vector<std::int64_t>{2, 3, 4}));
  // Of every whole step, as none is short: CPUs used, and by batches; and waited for, where the
  // kernel counts that.
  std::map<std::string, std::vector<double>> readings;
  for (const Counter& counter : records<Counter>(events, "counters")) {
    readings[items(events, "texts").at(counter.counter)->items.at(1).text].push_back(counter.value);
  }
  const std::vector<double>& used = readings["CPUs in use"];
  const std::vector<double>& by_batches = readings["CPUs in use for batches"];
  CHECK_EQ(used.size(), 2U);
  CHECK_EQ(by_batches.size(), 2U);
  CHECK(used[1] > 0);
  CHECK_EQ(by_batches[0], 0.0);
  // Step 4 had a batch of a second of CPU time, as far as the engine says.
  CHECK(by_batches[1] > used[1]);
  const std::vector<double>& waited = readings["CPUs waited for"];
  CHECK_EQ(waited.size(), cpu_wait_of_this_thread() ? 2U : 0U);
  for (const double share : waited) CHECK(share >= 0);
}

TEST(half_full_is_told_before_anything_is_lost) {
  Buffers buffers(1 << 20);
  CHECK(!buffers.half_full());
  std::size_t waits = 0;
  for (; !buffers.half_full(); ++waits) CHECK(buffers.waits.put({1, 2, kNone, 0}));
  CHECK_EQ(waits, buffers.waits.capacity() / 2 + 1);
  for (Wait wait; buffers.waits.take(wait);) {
  }
  CHECK(!buffers.half_full());
  buffers.pending.names.assign(buffers.text_limit / 2 + 1, 'x');
  CHECK(buffers.half_full());
}

TEST(a_window_that_never_begins_is_told) {
  const Folder folder;
  Capture capture;
  CHECK_EQ(capture.start(options_for(folder.file("t"), {100, 120})), "");
  capture.step();
  CHECK(!capture.end("early"));
  capture.join();
  CHECK_EQ(parse_json(read_file(folder.file("t"))).items.size(), 2U);
}

TEST(everything_at_once_from_many_threads) {
  const Folder folder;
  Capture capture(1 << 20);
  std::atomic<bool> stop{false};
  testing::run_threads(4, [&](int index) {
    if (index == 0) {  // the engine's thread
      for (int file = 0; file < 20; ++file) {
        CHECK_EQ(capture.start(options_for(folder.file(std::to_string(file)))), "");
        const std::uint32_t name = name_one(capture, "n");
        for (std::uint64_t serial = 0; serial < 500; ++serial) {
          record_batch(capture, serial, name, 20);
          capture.clock(1, 2, 3);
        }
        capture.settings(static_cast<std::uint64_t>(file), "s");
        if (file % 2 == 0) capture.end("");
      }
      stop = true;
      return;
    }
    for (int n = 0; !stop; ++n) {
      capture.wait({n, n + 1, kNone, static_cast<std::uint32_t>(index)});
      capture.mark(MarkKind::kUser, n, "thread " + std::to_string(n % 10));
      capture.counter("c", n);
      capture.step();
      if (n % 100 == 0) capture.join();
      std::this_thread::yield();
    }
  });
  capture.end("");
  capture.join();
  for (int file = 0; file < 20; ++file) {
    const Json events = parse_json(read_file(folder.file(std::to_string(file))));
    CHECK_EQ(events.items.back().at("name").text, "hvdtune_end");
    CHECK_EQ(records<Batch>(events, "batches").size() * 20,
             records<Tensor>(events, "tensors").size());
  }
}

}  // namespace hvdtune::testing::test_capture
