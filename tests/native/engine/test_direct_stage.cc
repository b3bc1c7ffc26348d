// Where tensors are published that go past the coordinator: nothing is written over that a peer may
// still read, and nothing is kept for longer than that.
#include "engine/submission/direct_stage.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_direct_stage {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kRing = 16 * kPage;

/// The stage of rank 0 in a job of three ranks; set 1 has the ranks 0 and 2.
struct Fixture {
  std::shared_ptr<Arena> arena = Arena::create(3);
  ProcessSets sets{{{0, 1, 2}, {0, 2}}};
  DirectStage stage{*arena, sets, {0, kRing}};

  [[nodiscard]] std::uint32_t round(wire::Slot slot) { return arena->slot_round(slot).round(); }
  std::optional<std::size_t> take(wire::Slot slot, std::size_t bytes, std::uint32_t set = 0) {
    return stage.take(slot, round(slot), set, bytes);
  }
  /// All members of set 0 arrive.
  void complete(wire::Slot slot) {
    for (int member = 0; member < 3; ++member) {
      CHECK(arena->slot_round(slot).arrive_direct(3, round(slot)).accepted == true);
      if (arena->slot_round(slot).state(round(slot)) != SlotRound::State::kOpen) break;
    }
  }
  void read(wire::Slot slot, std::uint32_t round, int rank) {
    arena->staged(slot, rank).finished.store(round + 1);
  }
};

}  // namespace

/// Whatever the number of ranks; the tests' own jobs are small, and crowded on a small machine.
TEST(a_ring_is_made_of_pages_for_any_number_of_ranks) {
  for (int ranks = 1; ranks <= kMaxRanksPerHost; ++ranks) {
    for (const int cpus : {1, kMaxRanksPerHost}) {
      const auto arena = Arena::create(ranks, cpus);
      const ProcessSets sets(std::vector<std::vector<int>>{{0}});
      const DirectStage stage(*arena, sets, stage_for_each(*arena));
      CHECK(stage.longest() >= (128 << 10));
      CHECK(stage.longest() % 4096 == 0);
    }
  }
}

TEST(a_full_stage_has_no_room_until_a_piece_is_read_by_all) {
  Fixture job;
  for (wire::Slot slot = 0; slot < 4; ++slot)
    CHECK_EQ(*job.take(slot, kRing / 4), slot * kRing / 4);
  CHECK(!job.take(4, 1));
  CHECK(!job.take(4, kRing));
  job.read(0, 0, 0);
  job.read(0, 0, 1);
  CHECK(!job.take(4, 1));  // rank 2 may read it
  job.read(0, 0, 2);
  CHECK_EQ(*job.take(4, kPage + 1), 0U);
  CHECK_EQ(*job.take(5, 2 * kPage), 2 * kPage);  // the rest of the old piece
  CHECK(!job.take(6, 1));
}

TEST(only_the_members_of_the_set_are_waited_for) {
  Fixture job;
  CHECK(job.take(0, kRing, 1).has_value());
  job.read(0, 0, 0);
  CHECK(!job.take(1, kRing));
  job.read(0, 0, 2);
  CHECK(job.take(1, kRing).has_value());
}

TEST(a_tensor_that_has_come_round_again_is_read) {
  Fixture job;
  CHECK(job.take(0, kRing).has_value());
  job.complete(0);
  CHECK(!job.take(0, kRing));  // some are in the round that has just ended
  job.complete(0);
  CHECK(job.take(0, kRing).has_value());
  // Another tensor gets the slot: everybody has come past the end of this one.
  job.arena->slot_round(0).reset();
  CHECK(job.take(0, kRing).has_value());
}

TEST(a_round_that_was_given_up_leaves_its_room) {
  Fixture job;
  CHECK(job.take(0, kRing / 2).has_value());
  CHECK(job.take(1, kRing / 2).has_value());
  job.stage.give_back(1, 0);
  job.stage.give_back(7, 0);  // has none
  CHECK(!job.take(2, 1));     // the oldest first
  job.stage.give_back(0, 0);
  CHECK(job.take(2, kRing).has_value());
}

TEST(a_removed_set_says_nothing_of_who_reads) {
  Fixture job;
  CHECK(job.take(0, kRing, 1).has_value());
  job.sets.remove(1);
  CHECK(!job.take(1, 1));
  job.arena->slot_round(0).reset();
  CHECK(job.take(1, 1).has_value());
}

TEST(pieces_in_use_never_overlap) {
  Fixture job;
  std::mt19937 random(3);
  struct Used {
    wire::Slot slot;
    std::uint32_t round;
    std::size_t begin;
    std::size_t end;
  };
  std::deque<Used> used;
  std::size_t refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto slot = static_cast<wire::Slot>(random() % 8);
    const std::size_t bytes = 1 + random() % (kRing / 3);
    const std::uint32_t round = job.round(slot);
    // A slot is in one round at a time.
    bool again = false;
    for (const Used& piece : used) again = again || (piece.slot == slot && piece.round == round);
    const auto place = again ? std::nullopt : job.take(slot, bytes);
    if (place) {
      CHECK(*place + bytes <= kRing);
      for (const Used& piece : used) CHECK(*place + bytes <= piece.begin || *place >= piece.end);
      used.push_back({slot, round, *place, *place + bytes});
    } else {
      ++refused;
      const Used& piece = used.front();
      for (int rank = 0; rank < 3; ++rank) job.read(piece.slot, piece.round, rank);
      job.complete(piece.slot);
      used.pop_front();
    }
  }
  CHECK(refused > 500 && refused < 4500);
}

}  // namespace hvdtune::testing::test_direct_stage
