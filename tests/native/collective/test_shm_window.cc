#include "collective/shm/shm_window.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>

#include "check.h"

namespace hvdtune::testing::test_shm_window {
namespace {

TEST(four_chunks_in_a_row_never_overlap) {
  std::mt19937 random(7);
  for (const std::size_t chunk : {64UL, 4096UL, 5000UL, 131072UL, std::size_t{kMaxChunk}}) {
    for (const std::size_t ring : {std::size_t{0}, std::size_t{1} << 20}) {
      ShmWindow window;
      window.resize(ring, chunk);
      CHECK(window.ring() >= ring && window.ring() <= kWindowBytes);
      std::deque<std::pair<std::size_t, std::size_t>> alive;
      for (std::uint64_t number = 0; number < 2000; ++number) {
        const std::size_t bytes = random() % 3 == 0 ? chunk : 1 + random() % chunk;
        CHECK_EQ(window.open(bytes), number);
        const std::size_t begin = window.place(number);
        CHECK(begin + bytes <= window.ring());
        for (const auto& [from, to] : alive) CHECK(begin + bytes <= from || begin >= to);
        alive.emplace_back(begin, begin + bytes);
        if (alive.size() == kWindowChunks) alive.pop_front();
        for (std::uint64_t back = 0; back < alive.size(); ++back) {
          CHECK_EQ(window.place(number - back), alive[alive.size() - 1 - back].first);
        }
      }
    }
  }
}

TEST(small_chunks_use_the_whole_ring) {
  ShmWindow window;
  window.resize(1 << 20, 256 << 10);
  std::size_t furthest = 0;
  for (int i = 0; i < 1000; ++i) furthest = std::max(furthest, window.place(window.open(100)));
  CHECK(furthest + 4096 == window.ring());
}

}  // namespace
}  // namespace hvdtune::testing::test_shm_window
