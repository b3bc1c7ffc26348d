// A recording that begins with the job: each rank waits until rank 0 has said what is recorded.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/threads/futex.h"
#include "check.h"
#include "engine_job.h"
#include "folder.h"
#include "transport/meeting/meet_on_host.h"

namespace hvdtune::testing::test_recording_decision {
namespace {

/// What rank 1 does while a rank 0 that has met it, but is no engine, has not decided yet.
struct Undecided {
  HostSession rank_0;
  std::atomic<int> looks{0};  // of rank 1, since they have met
  std::atomic<bool> started{false};

  /// Waits, no longer than a test may take.
  template <typename Condition>
  static void wait_until(Condition&& reached) {
    for (const Nanos end = monotonic_now() + kPatience; !reached();) {
      CHECK(monotonic_now() < end);
      std::this_thread::yield();
    }
  }

  void wait_for_looks() const {
    wait_until([this] { return looks >= 5; });  // some may still be from the meeting itself
  }
  void decide() const {
    rank_0.arena->recording_decided().store(1);
    futex_wake(&rank_0.arena->recording_decided(), kWakeAll);
  }
  /// Rank 1 has started: nobody is there to end the job in order.
  void end() const {
    wait_until([this] { return started.load(); });
    rank_0.arena->abort("the test is over");
  }
};

/// Rank 1 starts with a recording; `rank_0(state)` runs once they have met, `look(state)` is what
/// interrupts the wait now and then. `engine(start)` gets what makes the engine of rank 1.
void meet_undecided(const std::function<void(Undecided&)>& rank_0,
                    const std::function<void(Undecided&)>& look,
                    const std::function<void(const std::function<std::unique_ptr<Engine>()>&)>& own,
                    Nanos timeout = kPatience) {
  const Folder folder;
  const std::string endpoint = fresh_endpoint();
  Undecided state;
  std::atomic<bool> met{false};
  run_threads(2, [&](int rank) {
    EngineOptions options = options_of(rank, 2, endpoint);
    options.meeting.timeout = timeout;
    options.recording.horovod_format = false;
    options.timeline = folder.file("t.json");
    if (rank == 0) {
      state.rank_0 = meet_on_host(options.meeting);
      met = true;
      rank_0(state);
      return;
    }
    options.meeting.on_wait = [&] {
      if (!met) return;
      ++state.looks;
      look(state);
    };
    own([&] {
      auto engine = std::make_unique<Engine>(std::move(options));
      state.started = true;
      return engine;
    });
  });
}

void nothing(Undecided&) {}

TEST(a_rank_starts_when_rank_0_has_decided_and_not_before) {
  std::atomic<bool> decided{false};
  meet_undecided(
      [&](Undecided& state) {
        state.wait_for_looks();
        decided = true;
        state.decide();
        state.end();
      },
      nothing,
      [&](const auto& start) {
        const auto engine = start();
        CHECK(decided);
        CHECK(!engine->takes_records());  // this rank 0 has ordered nothing
      });
}

TEST(an_interrupt_ends_the_wait_and_the_others_are_told) {
  std::string told;
  meet_undecided(
      [&](Undecided& state) {
        Undecided::wait_until([&] { return state.rank_0.arena->aborted(); });
        told = state.rank_0.arena->abort_status().text;
      },
      [](Undecided& state) {
        if (state.looks >= 5) throw std::runtime_error("Ctrl-C");
      },
      [](const auto& start) {
        std::string why;
        try {
          start();
        } catch (const std::runtime_error& error) {
          why = error.what();
        }
        CHECK_EQ(why, "Ctrl-C");
      });
  check_contains(told, "rank 1 cannot start: it was interrupted");
}

TEST(the_wait_ends_with_the_job) {
  meet_undecided(
      [](Undecided& state) {
        state.wait_for_looks();
        state.rank_0.arena->abort("rank 0 died");
      },
      nothing,
      [](const auto& start) {
        const auto engine = start();
        std::vector<float> data(4, 1);
        std::string why;
        try {
          why = failure(*engine, engine->submit(in_place(OpKind::kAllreduce, "a", data))).text;
        } catch (const Error& error) {
          why = error.what();
        }
        check_contains(why, "rank 0 died");
      });
}

TEST(a_rank_0_that_never_decides_is_not_waited_for_longer_than_the_start_may_take) {
  meet_undecided(
      [](Undecided& state) {
        // Stays, and says nothing, until the other has started all the same.
        state.end();
        CHECK(state.looks > 0);
      },
      nothing, [](const auto& start) { CHECK(!start()->takes_records()); }, 5 * kSecond);
}

}  // namespace
}  // namespace hvdtune::testing::test_recording_decision
