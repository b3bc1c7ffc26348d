#include "collective/shm/cache_distance.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "threads.h"

namespace hvdtune::testing::test_cache_distance {
namespace {

constexpr std::size_t kMuch = 1 << 20;

TEST(user_s_choice_is_final) {
  const auto arena = Arena::create(2);
  CacheDistance distance(arena->distance(0), 2, 0);
  for (const std::uint32_t far : {0U, 1U}) {
    arena->distance(0).far.store(far);
    distance.choose(Writing::kCached);
    CHECK(distance.writing(kMuch) == CopyKind::kCached);
    distance.choose(Writing::kStreamed);
    CHECK(distance.writing(kMuch) == CopyKind::kStreamed);
  }
}

TEST(what_was_measured_is_everybody_s_answer) {
  const auto arena = Arena::create(3);
  for (const int index : {1, 2}) {
    CacheDistance distance(arena->distance(5), 3, index);
    arena->distance(5).far.store(0);
    CHECK(distance.writing(kMuch) == CopyKind::kCached);
    arena->distance(5).far.store(1);
    CHECK(distance.writing(kMuch) == CopyKind::kStreamed);
  }
}

/// Until probe number `probe` is written, or member 0 has had time for it.
void ask_for_a_while(CacheDistance& member, DistanceCell& cell, std::uint32_t probe) {
  for (int turn = 0; turn < 200 && cell.probe.load() < probe; ++turn) {
    member.writing(kMuch);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A page that somebody has not read would be written at no cost.
TEST(no_probe_before_all_have_read_the_last) {
  const auto arena = Arena::create(3);
  DistanceCell& cell = arena->distance(0);
  CacheDistance first(cell, 3, 0);
  CacheDistance second(cell, 3, 1);
  CacheDistance third(cell, 3, 2);
  ask_for_a_while(first, cell, 1);
  CHECK_EQ(cell.probe.load(), 1U);
  second.writing(kMuch);
  ask_for_a_while(first, cell, 2);
  CHECK_EQ(cell.probe.load(), 1U);
  third.writing(1);  // whatever the operation's size
  ask_for_a_while(first, cell, 2);
  CHECK_EQ(cell.probe.load(), 2U);
}

TEST(small_operations_do_not_measure) {
  const auto arena = Arena::create(2);
  DistanceCell& cell = arena->distance(0);
  CacheDistance first(cell, 2, 0);
  for (int turn = 0; turn < 100; ++turn) first.writing(64);
  CHECK_EQ(cell.probe.load(), 0U);
}

/// Thread sanitizer finds a probe that is written while it is read.
TEST(probes_and_readers_do_not_meet) {
  constexpr int kMembers = 3;
  const auto arena = Arena::create(kMembers);
  DistanceCell& cell = arena->distance(0);
  run_threads(kMembers, [&](int index) {
    CacheDistance distance(cell, kMembers, index);
    while (cell.probe.load(std::memory_order_relaxed) < 6) {
      distance.writing(kMuch);
      std::this_thread::yield();
    }
  });
  CHECK(cell.probe.load() >= 6U);
}

TEST(cells_are_made_as_new) {
  const auto arena = Arena::create(2);
  DistanceCell& cell = arena->distance(1);
  cell.probe.store(7);
  cell.far.store(1);
  cell.readers[1].probe.store(7);
  arena->reset_cells(1);
  CHECK_EQ(cell.probe.load(), 0U);
  CHECK_EQ(cell.far.load(), 0U);
  CHECK_EQ(cell.readers[1].probe.load(), 0U);
}

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

TEST(copies_of_any_size_and_place) {
  const std::vector<std::byte> from = pattern(20000);
  for (const CopyKind kind : {CopyKind::kCached, CopyKind::kStreamed}) {
    for (const std::size_t bytes : {0, 1, 63, 64, 511, 512, 513, 4095, 4096, 4100, 9999}) {
      for (const std::size_t at : {0, 1, 17, 63}) {
        std::vector<std::byte> to(12000);
        copy_bytes(to.data() + at, from.data() + 3, bytes, kind);
        CHECK(std::memcmp(to.data() + at, from.data() + 3, bytes) == 0);
        CHECK(to[at + bytes] == std::byte{});
        std::vector<std::byte> again(12000);
        copy_unordered(again.data() + at, from.data() + 3, bytes, kind);
        order_copies(kind);
        CHECK(again == to);
      }
    }
  }
}

}  // namespace
}  // namespace hvdtune::testing::test_cache_distance
