// Recordings of whole jobs: all ranks' captures together with everything else that engines do.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"
#include "folder.h"
#include "strict_json.h"

namespace hvdtune::testing::test_recording {
namespace {

using Action = wire::TimelineOrder::Action;

void ask(Engine& engine, const wire::TimelineOrder& order) {
  CHECK(engine.await_timeline(engine.ask_timeline(order), monotonic_now() + kPatience));
}

void start(Engine& engine, const std::string& path) {
  ask(engine, {.action = Action::kStart, .path = path});
}

void stop(Engine& engine) { ask(engine, {.action = Action::kStop}); }

/// All ranks are here: what was scheduled before, each has read.
void meet(Engine& engine) {
  std::vector<float> one(1, 1);
  finish(engine, engine.submit(in_place(OpKind::kAllreduce, "meet", one)));
}

void captures(EngineOptions& options) { options.recording.horovod_format = false; }

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ranks_that_still_record_are_stopped_when_rank_0_has_given_up) {
  const Folder folder;
  // A disk without room, for rank 0 alone.
  std::filesystem::create_symlink("/dev/full", folder.file("t.json"));
  run_job(
      2,
      [&](int rank, Engine& engine) {
        meet(engine);
        if (rank == 0) start(engine, folder.file("t.json"));
        meet(engine);
        CHECK_EQ(engine.is_recorded(), rank == 1);
        meet(engine);
        if (rank == 0) stop(engine);
        meet(engine);
        CHECK(!engine.is_recorded());
        meet(engine);
        // And nothing is in the way of the next one.
        if (rank == 0) start(engine, folder.file("next.json"));
        meet(engine);
        CHECK(engine.is_recorded());
      },
      captures);
  for (const char* name : {"t.rank1.json", "next.json", "next.rank1.json"}) {
    parse_json(text_of(folder.file(name)));
  }
  check_contains(text_of(folder.file("t.rank1.json")), "stop_timeline() was called");
}

TEST(a_stop_counts_though_nobody_has_begun_yet) {
  const Folder folder;
  run_job(
      2,
      [&](int rank, Engine& engine) {
        for (int round = 0; round < 100; ++round) {
          if (rank == 1) {
            // Rank 0 hears both before it reads what has come of the first.
            engine.ask_timeline({.action = Action::kStart, .path = folder.file("t.json")});
            const auto stop = engine.ask_timeline({.action = Action::kStop});
            CHECK(engine.await_timeline(stop, monotonic_now() + kPatience));
          }
          meet(engine);
          CHECK(!engine.is_recorded());
          meet(engine);
        }
      },
      captures);
  parse_json(text_of(folder.file("t.json")));
}

TEST(signals_toggle_what_has_been_ordered) {
  const Folder folder;
  run_job(
      2,
      [&](int rank, Engine& engine) {
        for (int round = 0; round < 100; ++round) {
          if (rank == 1) {
            const wire::TimelineOrder toggle{.action = Action::kToggle,
                                             .path = folder.file("t.json")};
            engine.ask_timeline(toggle);
            CHECK(engine.await_timeline(engine.ask_timeline(toggle), monotonic_now() + kPatience));
          }
          meet(engine);
          CHECK(!engine.is_recorded());
          meet(engine);
        }
      },
      captures);
}

TEST(a_job_that_is_recorded_from_its_start_is_before_anything_is_submitted) {
  const Folder folder;
  for (int job = 0; job < 20; ++job) {
    run_job(
        3,
        [&](int, Engine& engine) {
          CHECK(engine.takes_records());
          engine.mark(capture::MarkKind::kUser, 1, "the first thing");
        },
        [&](EngineOptions& options) {
          captures(options);
          options.timeline = folder.file("t.json");
        });
    for (const char* name : {"t.json", "t.rank1.json", "t.rank2.json"}) {
      check_contains(text_of(folder.file(name)), "the first thing");
    }
  }
}

/// Gradients by name, a blocking allreduce that may go past the coordinator, one of a process set.
void some_steps(Engine& engine, int rank, int steps) {
  std::vector<float> data(64, 1);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::int64_t> handles;
    std::vector<std::vector<float>> gradients(6, std::vector<float>(100, 1));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::string name = "g" + std::to_string(i);
      handles.push_back(engine.submit(in_place(OpKind::kAllreduce, name, gradients[i])));
    }
    for (const std::int64_t handle : handles) finish(engine, handle);
    finish(engine, engine.submit_blocking(in_place(OpKind::kAllreduce, "direct", data)));
    if (rank < 2 && step < 20) {  // as many on both
      Submission apart = in_place(OpKind::kAllreduce, "apart", data);
      apart.request.process_set = 1;
      finish(engine, engine.submit(std::move(apart)));
    }
    engine.mark_step();
    engine.counter("loss", step);
    engine.mark(capture::MarkKind::kUser, step, "a mark");
  }
}

TEST(recordings_come_and_go_while_ranks_train_change_settings_and_join) {
  const Folder folder;
  constexpr int kRecordings = 12;
  run_job(
      3,
      [&](int rank, Engine& engine) {
        engine.start_clock();
        // Somebody else than the training loop starts and stops, on a rank that is not rank 0.
        std::jthread other([&](const std::stop_token& trained) {
          for (int i = 0; rank == 1 && i < kRecordings; ++i) {
            start(engine, folder.file(std::to_string(i) + ".json"));
            if (i % 3 == 0) std::this_thread::yield();
            stop(engine);
          }
          for (std::int64_t i = 1; rank == 0 && !trained.stop_requested(); ++i) {
            engine.change_settings({.fusion_threshold = 1000 * (i % 7)});
            check_contains(engine.status(), "\"epoch\":");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        });
        some_steps(engine, rank, 20 + 10 * rank);
        finish(engine, engine.join());
        some_steps(engine, rank, 5);
        other.request_stop();
        other.join();
        meet(engine);
        engine.stop_clock(monotonic_now() + kPatience);
      },
      [](EngineOptions& options) {
        captures(options);
        options.process_sets = {{0, 1}};
      });
  for (int i = 0; i < kRecordings; ++i) {
    for (const char* of : {".json", ".rank1.json", ".rank2.json"}) {
      parse_json(text_of(folder.file(std::to_string(i) + of)));
    }
  }
}

TEST(a_job_that_dies_closes_its_recordings) {
  const Folder folder;
  run_job(
      3,
      [&](int rank, Engine& engine) {
        some_steps(engine, rank, 3);
        std::vector<float> data(8, 1);
        for (int i = 0; engine.state().ok(); ++i) {
          // The others have come here, too.
          if (rank == 2 && i == 2) engine.abort("enough");
          try {
            engine.wait(engine.submit(in_place(OpKind::kAllreduce, "x" + std::to_string(i), data)),
                        monotonic_now() + kPatience);
          } catch (const Error&) {
            break;
          }
        }
        engine.shutdown();
        CHECK(engine.await_recordings(monotonic_now() + kPatience));
        CHECK(!engine.is_recorded());
      },
      [&](EngineOptions& options) {
        captures(options);
        options.process_sets = {{0, 1}};
        options.timeline = folder.file("t.json");
      });
  for (const char* name : {"t.json", "t.rank1.json", "t.rank2.json"}) {
    parse_json(text_of(folder.file(name)));
    check_contains(text_of(folder.file(name)), "hvdtune_end");
  }
}

TEST(a_last_look_at_the_clock_does_not_outlast_the_job) {
  std::atomic<bool> gone{false};
  bool found = true;
  const std::string endpoint = fresh_endpoint();
  run_threads(2, [&](int rank) {
    {
      Engine engine(options_of(rank, 2, endpoint));
      meet(engine);
      if (rank == 1) {
        await(gone);
        // Until the test's own limit, if this does not end before.
        found = engine.stop_clock(kForever);
      }
      engine.shutdown();
    }
    if (rank == 0) gone = true;
  });
  CHECK(!found);
}

}  // namespace
}  // namespace hvdtune::testing::test_recording
