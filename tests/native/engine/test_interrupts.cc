// What an elastic job needs of the engine: interrupts that all ranks see after the same operation,
// and meetings that end when they will not come about.
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "engine_job.h"
#include "transport/meeting/cancellation.h"

namespace hvdtune::testing::test_interrupts {
namespace {

constexpr std::uint64_t kInterrupts = 20;

/// Trains until the last interrupt is seen; the steps after which each was, a 0 where several were
/// seen at once.
std::vector<int> steps_of_interrupts(int rank, Engine& engine) {
  std::vector<int> steps(kInterrupts);
  std::jthread other([&](const std::stop_token& trained) {
    std::mt19937_64 random(7);
    for (std::uint64_t number = 1; number <= kInterrupts && !trained.stop_requested(); ++number) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      engine.interrupt(number);  // on all ranks, as news for everybody come; rank 0's counts
    }
  });
  std::uint64_t seen = 0;
  for (int step = 1; seen < kInterrupts; ++step) {
    std::vector<float> large(50'000, 1.0F);
    std::vector<float> small(4, static_cast<float>(rank));
    const auto first = engine.submit(in_place(OpKind::kAllreduce, "large", large));
    // One that goes past the coordinator if nothing keeps it from that.
    finish(engine, engine.submit_blocking(in_place(OpKind::kAllreduce, "small", small)));
    finish(engine, first);
    const std::uint64_t now = engine.interrupted();
    CHECK(now >= seen);
    if (now > seen) steps[now - 1] = step;
    seen = now;
  }
  return steps;
}

}  // namespace

TEST(interrupts_are_seen_after_the_same_step_on_all_ranks) {
  for (const int size : {1, 2, 3}) {
    std::vector<std::vector<int>> seen(static_cast<std::size_t>(size));
    run_job(size, [&](int rank, Engine& engine) {
      seen[static_cast<std::size_t>(rank)] = steps_of_interrupts(rank, engine);
    });
    for (const auto& steps : seen) CHECK(steps == seen[0]);
  }
}

TEST(an_interrupt_is_not_seen_before_an_operation_is_completed) {
  run_job(2, [](int rank, Engine& engine) {
    CHECK_EQ(engine.interrupted(), 0U);
    engine.interrupt(5);
    engine.interrupt(3);  // no higher than the one before
    std::vector<float> data(4, 1.0F);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_EQ(engine.interrupted(), 0U);
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "a", data)));
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "b", data)));
    CHECK_EQ(engine.interrupted(), 5U);
  });
}

TEST(a_meeting_that_will_not_come_about_can_be_cancelled) {
  for (const bool network : {false, true}) {
    const std::string endpoint = fresh_endpoint();
    std::atomic<int> left{0};  // rank 1 before rank 0, whose end it would notice
    // Of three ranks the last does not come.
    run_threads(2, [&](int rank) {
      EngineOptions options = options_of(rank, 3, endpoint);
      if (network) {
        options.local_size = 1;
        options.network = NetworkOptions{.host = "127.0.0.1",
                                         .port = 20000 + getpid() % 10000,
                                         .secret = "secret",
                                         .version = "1",
                                         .interfaces = {},
                                         .host_id = std::to_string(rank)};
      }
      Cancellation cancellation;
      options.meeting.on_wait = [&] { cancellation.check(); };
      std::jthread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const Nanos end = monotonic_now() + kPatience;
        while (rank == 0 && left.load() == 0 && monotonic_now() < end) std::this_thread::yield();
        cancellation.cancel("another rank has died");
        cancellation.cancel("a second reason");
      });
      CHECK_THROWS_WITH(Engine(std::move(options)), Error, "another rank has died");
      left.fetch_add(1);
    });
  }
}

TEST(a_generation_that_is_cancelled_fails_everywhere_for_that_reason) {
  std::atomic<int> submitted{0};
  std::atomic<int> failed{0};
  run_job(3, [&](int rank, Engine& engine) {
    std::vector<float> data(4, 1.0F);
    finish(engine, engine.submit(in_place(OpKind::kAllreduce, "together", data)));
    // The last rank hangs: it announces nothing.
    const std::int64_t handle =
        rank == 2 ? 0 : engine.submit(in_place(OpKind::kAllreduce, "alone", data));
    submitted.fetch_add(1);
    const Nanos deadline = monotonic_now() + kPatience;
    while (submitted.load() < 3 || (rank == 2 && failed.load() < 2)) {
      CHECK(monotonic_now() < deadline);
      std::this_thread::yield();
    }
    if (rank == 2) return;
    if (rank == 1) engine.cancel("p2 has been silent for 5 s");
    const std::string text = failure(engine, handle).text;
    failed.fetch_add(1);
    check_contains(text, "p2 has been silent for 5 s");
    CHECK_MSG(text.find("ended the job") == std::string::npos, text << ": no rank has ended it");
    engine.cancel("a second reason");
  });
}

}  // namespace hvdtune::testing::test_interrupts
