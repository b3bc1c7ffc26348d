// Work that whoever runs does, and sums that are made so: everything once, by anybody, and by each
// for itself when somebody does not come back with its piece.
#include "engine/submission/shared_sum.h"

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "threads.h"

namespace hvdtune::testing::test_shared_sum {
namespace {

using State = SharedWork::State;

constexpr int kMembers = 4;
constexpr wire::Slot kSlot = 3;
constexpr std::size_t kElements = 25000;  // six whole pieces, and a part of one
constexpr std::size_t kBytes = kElements * sizeof(float);

/// Four ranks that have published `rank + 1` everywhere, and room for a result with rank 1, the
/// first of the set.
struct Job {
  std::shared_ptr<Arena> arena = Arena::create(kMembers + 1, 1);
  std::vector<int> ranks{1, 2, 3, 4};

  void publish(std::uint32_t round, bool shared = true) {
    for (const int rank : ranks) {
      const std::vector<float> data(kElements, static_cast<float>(rank));
      std::memcpy(arena->stage(rank) + round % 2 * (1 << 20), data.data(), kBytes);
      StagedTensor& staged = arena->staged(kSlot, rank);
      staged.place[round % 2].store(round % 2 * (1 << 20));
      // What others than the first say is not asked for.
      staged.result[round % 2].store(shared && rank == 1 ? 2 << 20 : StagedTensor::kReducedByEach);
    }
  }
  bool fetch(std::uint32_t round, std::vector<float>& out, CopyKind writing = CopyKind::kCached,
             Nanos patience = 60 * kSecond) {
    SharedSum sum(*arena, ranks, {kSlot, round, DType::kFloat32, ReduceOp::kSum, 2.0, kBytes},
                  patience);
    return sum.fetch(out.data(), writing);
  }
};

constexpr float kSum = 2 * (1 + 2 + 3 + 4);

}  // namespace

TEST(pieces_are_claimed_once_and_counted) {
  SharedWork work;
  CHECK(work.state(0, 2) == State::kOpen);
  CHECK_EQ(*work.claim(0, 2), 0U);
  CHECK_EQ(*work.claim(0, 2), 1U);
  CHECK(!work.claim(0, 2));
  work.done(0);
  CHECK(work.state(0, 2) == State::kOpen);
  work.done(0);
  CHECK(work.state(0, 2) == State::kComplete);
  CHECK(work.give_up(0, 2) == State::kComplete);  // too late

  // The next round begins with its first claim.
  CHECK(work.state(1, 3) == State::kOpen);
  CHECK_EQ(*work.claim(1, 3), 0U);
  CHECK(work.give_up(1, 3) == State::kGivenUp);
  CHECK(!work.claim(1, 3));
  work.done(1);
  CHECK(work.state(1, 3) == State::kGivenUp);
  CHECK(work.give_up(7, 1) == State::kGivenUp);  // before anybody has claimed anything
  CHECK(!work.claim(7, 1));
}

TEST(every_piece_is_done_by_one_of_many_threads) {
  constexpr std::uint32_t kPieces = 50;
  constexpr std::uint32_t kRounds = 200;
  SharedWork work;
  std::vector<std::atomic<int>> times(kPieces);
  std::barrier together(kMembers);
  run_threads(kMembers, [&](int member) {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      while (const auto piece = work.claim(round, kPieces)) {
        ++times[*piece];
        work.done(round);
      }
      while (work.state(round, kPieces) == State::kOpen) std::this_thread::yield();
      together.arrive_and_wait();
      if (member == 0) {
        for (std::atomic<int>& count : times) CHECK_EQ(count.exchange(0), 1);
      }
      together.arrive_and_wait();
    }
  });
}

TEST(whoever_runs_sums_up_and_all_have_the_result) {
  for (const CopyKind writing : {CopyKind::kCached, CopyKind::kStreamed}) {
    Job job;
    std::barrier together(
        kMembers, [&, round = std::uint32_t{0}]() mutable noexcept { job.publish(round++); });
    run_threads(kMembers, [&](int) {
      for (std::uint32_t round = 0; round < 50; ++round) {
        together.arrive_and_wait();
        std::vector<float> out(kElements);
        CHECK(job.fetch(round, out, writing));
        CHECK(out == std::vector<float>(kElements, kSum));
      }
    });
  }
}

TEST(what_the_first_member_does_not_share_nobody_does) {
  Job job;
  job.publish(0, false);
  std::vector<float> out(kElements);
  CHECK(!job.fetch(0, out));
  CHECK(job.arena->shared_work(kSlot).state(0, 7) == State::kOpen);
}

/// Somebody has claimed a piece and is stopped: the others need not wait, and agree on that.
TEST(a_piece_that_does_not_come_ends_the_sharing_for_all) {
  Job job;
  job.publish(0);
  CHECK_EQ(*job.arena->shared_work(kSlot).claim(0, 7), 0U);
  std::atomic<int> alone{0};
  run_threads(kMembers - 1, [&](int) {
    std::vector<float> out(kElements);
    if (!job.fetch(0, out, CopyKind::kCached, kMillisecond)) ++alone;
  });
  CHECK_EQ(alone.load(), kMembers - 1);
  // It comes back: what it does now is not relied on by itself either.
  job.arena->shared_work(kSlot).done(0);
  std::vector<float> out(kElements);
  CHECK(!job.fetch(0, out));
}

}  // namespace hvdtune::testing::test_shared_sum
