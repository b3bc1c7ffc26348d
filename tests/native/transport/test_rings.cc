#include "transport/arena/ring.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "threads.h"
#include "transport/arena/arena.h"
#include "transport/arena/doorbell.h"

namespace hvdtune::testing::test_rings {
namespace {

constexpr std::uint64_t kCapacity = 1024;

struct MessageRingMemory {
  RingHead head;
  std::vector<std::byte> data = std::vector<std::byte>(kCapacity);
  MessageRing ring{&head, data.data(), kCapacity};
};

struct BroadcastRingMemory {
  explicit BroadcastRingMemory(int readers)
      : cursors(static_cast<std::size_t>(readers)),
        ring(&written, cursors.data(), readers, data.data(), kCapacity) {}
  std::atomic<std::uint64_t> written{0};
  std::vector<ReadCursor> cursors;
  std::vector<std::byte> data = std::vector<std::byte>(kCapacity);
  BroadcastRing ring;
};

/// A record that tells its number and whether it is whole.
std::string record(std::uint64_t number, std::uint64_t max_bytes) {
  std::string text = std::to_string(number) + ":";
  const std::uint64_t length = number * 2654435761U % (max_bytes - text.size() + 1);
  text.append(length, static_cast<char>('a' + number % 26));
  return text;
}

}  // namespace

TEST(message_ring_keeps_order_and_content_at_every_fill_level) {
  MessageRingMemory memory;
  std::mt19937_64 generator(7);
  std::deque<std::string> expected;
  std::uint64_t number = 0;
  int full = 0;
  for (int round = 0; round < 50000; ++round) {
    const std::uint64_t limit = round % 3 == 0 ? memory.ring.max_record() : 40;
    if (generator() % 2 == 0) {
      const std::string next = record(number, limit);
      if (memory.ring.push(next)) {
        expected.push_back(next);
        ++number;
      } else {
        ++full;
        CHECK(!expected.empty());  // an empty ring takes every record
      }
    } else {
      std::string got;
      CHECK_EQ(memory.ring.pop(got), !expected.empty());
      if (expected.empty()) continue;
      CHECK_EQ(got, expected.front());
      expected.pop_front();
    }
  }
  CHECK(full > 0);
}

TEST(an_empty_ring_takes_the_longest_record_at_every_offset) {
  MessageRingMemory memory;
  const std::string longest(memory.ring.max_record(), 'x');
  std::string got;
  for (std::uint64_t step = 0; step < 2 * kCapacity / 8; ++step) {
    CHECK(memory.ring.push(longest));
    CHECK(memory.ring.pop(got));
    CHECK_EQ(got, longest);
    CHECK(memory.ring.push("1234"));  // moves the offset on by 8
    CHECK(memory.ring.pop(got));
    CHECK_EQ(got, "1234");
  }
  CHECK(memory.ring.push(""));
  CHECK(memory.ring.pop(got));
  CHECK_EQ(got, "");
}

TEST(message_ring_between_two_threads) {
  constexpr std::uint64_t kRecords = 20000;
  MessageRingMemory memory;
  run_threads(2, [&](int who) {
    std::string got;
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      const std::string expected = record(number, 200);
      if (who == 0) {
        while (!memory.ring.push(expected)) std::this_thread::yield();
      } else {
        while (!memory.ring.pop(got)) std::this_thread::yield();
        CHECK_EQ(got, expected);
      }
    }
  });
}

TEST(broadcast_ring_gives_every_reader_every_record) {
  constexpr std::uint64_t kRecords = 10000;
  constexpr int kReaders = 3;
  BroadcastRingMemory memory(kReaders);
  run_threads(kReaders + 1, [&](int who) {
    const int reader = who - 1;
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      const std::string expected = record(number, 200);
      if (who == 0) {
        while (!memory.ring.push(expected)) std::this_thread::yield();
        continue;
      }
      std::string got;
      std::uint64_t next = 0;
      while (!memory.ring.peek(reader, got, next)) std::this_thread::yield();
      CHECK_EQ(got, expected);
      memory.ring.advance(reader, next);
    }
  });
  CHECK_EQ(memory.ring.slowest(), memory.ring.written());
}

TEST(broadcast_ring_waits_for_its_slowest_reader) {
  BroadcastRingMemory memory(2);
  std::string got;
  std::uint64_t next = 0;
  int pushed = 0;
  while (memory.ring.push("some record")) {
    ++pushed;
    CHECK(memory.ring.peek(0, got, next));
    memory.ring.advance(0, next);
  }
  CHECK(pushed > 0);
  CHECK_EQ(memory.ring.slowest(), 0U);
  CHECK(!memory.ring.peek(0, got, next));
  CHECK(memory.ring.peek(1, got, next));
  CHECK(memory.ring.peek(1, got, next));  // peeking passes nothing
  CHECK(!memory.ring.push("some record"));
  memory.ring.advance(1, next);
  CHECK(memory.ring.push("some record"));
}

TEST(a_doorbell_wakes_its_sleeper) {
  auto doorbell = std::make_unique<Doorbell>();
  std::atomic<int> asked{0};
  std::atomic<int> answered{0};
  constexpr int kRounds = 2000;
  // Without a deadline: a lost ring hangs the test.
  run_threads(2, [&](int who) {
    for (int round = 1; round <= kRounds; ++round) {
      if (who == 0) {
        asked.store(round, std::memory_order_relaxed);
        doorbell->ring(Urgency::kNormal);
        while (answered.load() != round) std::this_thread::yield();
        continue;
      }
      while (true) {
        const std::uint32_t seen = doorbell->rings();
        doorbell->arm(Urgency::kNormal, Sleeper::kThread);
        if (asked.load() == round) break;
        doorbell->sleep(seen, Sleeper::kThread, kForever);
      }
      answered.store(round);
    }
  });
}

TEST(two_attached_arenas_are_the_same_memory) {
  const auto first = Arena::create(2);
  const auto second = Arena::attach(first->fd(), 2);
  MessageRing ring = first->announcements(1);
  CHECK(ring.push("hello"));
  std::string got;
  MessageRing same = second->announcements(1);
  CHECK(same.pop(got));
  CHECK_EQ(got, "hello");
  *(first->window(1) + kWindowBytes - 1) = std::byte{7};
  CHECK(*(second->window(1) + kWindowBytes - 1) == std::byte{7});
  CHECK(!second->aborted());
  CHECK(second->abort_status().ok());
  first->abort("rank 0 gave up");
  first->abort("a later reason");
  CHECK(second->aborted());
  CHECK_EQ(second->abort_status().text, "rank 0 gave up");
  CHECK(second->abort_status().kind == ErrorKind::kAborted);
}

TEST(a_long_abort_text_is_cut) {
  const auto arena = Arena::create(1);
  arena->abort(std::string(5000, 'x'));
  CHECK_EQ(arena->abort_status().text, std::string(kAbortTextBytes - 1, 'x'));
}

TEST(an_abort_text_is_cut_between_its_characters) {
  const std::string fits(kAbortTextBytes - 2, 'x');
  const auto arena = Arena::create(1);
  arena->abort(fits + "\xC3\xA4, and more");  // the second byte of "ä" would be too much
  CHECK_EQ(arena->abort_status().text, fits);
}

}  // namespace hvdtune::testing::test_rings
