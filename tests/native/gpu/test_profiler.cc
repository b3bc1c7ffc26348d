// NVTX ranges: given to a fake profiler, by hand and by engines with tensors on fake GPUs.
#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "device/libraries/profiler.h"
#include "engine_job.h"
#include "fake_profiler.h"

namespace hvdtune::testing::test_profiler {
namespace {

const Profiler& fake_profiler() { return Profiler::attach(fake_path("libnvtx.so")); }

std::size_t count(const std::vector<SeenRange>& seen, const std::string& name,
                  const std::string& within = "") {
  return static_cast<std::size_t>(std::ranges::count_if(
      seen, [&](const SeenRange& range) { return range.name == name && range.within == within; }));
}

/// An operation on tensors of a GPU, in place where it is an allreduce.
Submission submission_of(const std::string& name, int device, OpKind kind,
                         const std::vector<const DeviceMemory*>& memory, std::int64_t elements) {
  Submission submission;
  submission.request.kind = kind;
  submission.request.name = name;
  submission.request.device = device;
  submission.request.grouped = memory.size() > 1;
  for (const DeviceMemory* each : memory) {
    auto* const at = reinterpret_cast<void*>(each->pointer());
    submission.request.tensors.push_back({DType::kFloat32, {elements}});
    submission.memory.push_back({at, kind == OpKind::kAllreduce ? at : nullptr});
  }
  return submission;
}

Adjust with(bool nccl, const std::string& profiler) {
  return [=](EngineOptions& options) {
    options.gpus.cuda = fake_path("libcuda.so.1");
    if (nccl) options.gpus.nccl = fake_path("libnccl.so.2");
    options.gpus.profiler = profiler;
    options.gpus.timeout = 20 * kSecond;
  };
}

/// Two ranks reduce a group of two, `tensor` alone, and gather it.
void run_three_operations(const Adjust& adjust) {
  const Faults faults("devices=4");
  run_job(
      2,
      [](int rank, Engine& engine) {
        const auto device = fake_device(rank);
        const DeviceMemory one(device, 400);
        const DeviceMemory other(device, 400);
        for (const DeviceMemory* memory : {&one, &other}) {
          put(*device, memory->pointer(), std::vector<float>(100, 1.0F));
        }
        const auto submit = [&](const std::string& name, OpKind kind,
                                const std::vector<const DeviceMemory*>& memory) {
          finish(engine, engine.submit(submission_of(name, rank, kind, memory, 100)));
        };
        submit("group", OpKind::kAllreduce, {&one, &other});
        submit("alone", OpKind::kAllreduce, {&one});
        submit("gathered", OpKind::kAllgather, {&other});
        CHECK(get<float>(*device, one.pointer(), 100) == std::vector<float>(100, 4.0F));
      },
      adjust);
}

}  // namespace

TEST(a_profiler_that_cannot_be_attached_is_one_sentence) {
  // First of all: the process keeps the first one that can be.
  CHECK_THROWS_WITH(Profiler::attach("/nowhere/libprofiler.so"), Error,
                    "the profiler's NVTX library cannot be loaded: /nowhere/libprofiler.so");
  CHECK_THROWS_WITH(Profiler::attach("libm.so.6"), Error,
                    "has no InitializeInjectionNvtx2: hvdtune needs one for NVTX 3");
  const Faults faults("decline");
  CHECK_THROWS_WITH(fake_profiler(), Error, "libnvtx.so declines to be used");
}

TEST(without_a_profiler_a_job_is_as_ever) {
  run_three_operations(with(true, ""));
  run_three_operations(with(true, "/nowhere/libprofiler.so"));
}

TEST(spans_are_nested_and_ranges_end_once) {
  const Profiler* const profiler = &fake_profiler();
  take_ranges();
  {
    const ProfilerSpan outer(profiler, "outer");
    const ProfilerSpan inner(profiler, "inner");
    const ProfilerSpan none(nullptr, "none");
    ProfilerRange first(profiler, "first");
    ProfilerRange second(profiler, "second");
    ProfilerRange moved(std::move(first));
    second = std::move(moved);  // what it was ends
    second.end();
    second.end();
    ProfilerRange nothing(nullptr, "none");
    nothing = ProfilerRange(profiler, "third");
    std::thread([gone = std::move(nothing)] {}).join();
  }
  const SeenRanges seen = take_ranges();
  CHECK_EQ(seen.spans.size(), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune outer"), 1U);
  CHECK_EQ(count(seen.spans, "hvdtune inner", "hvdtune outer"), 1U);
  CHECK_EQ(seen.ranges.size(), 3U);
}

TEST(a_batch_for_nccl_has_its_phases_within_it) {
  fake_profiler();
  take_ranges();
  run_three_operations(with(true, fake_path("libnvtx.so")));
  const SeenRanges seen = take_ranges();
  // Of two ranks each.
  for (const std::string name : {"group", "alone", "gathered"}) {
    CHECK_EQ(count(seen.ranges, "hvdtune QUEUE " + name), 2U);
  }
  CHECK_EQ(seen.ranges.size(), 6U);
  CHECK_EQ(count(seen.spans, "hvdtune INIT_NCCL"), 2U);
  const std::string group = "hvdtune ALLREDUCE group and 1 more";
  CHECK_EQ(count(seen.spans, group), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune MEMCPY_IN_FUSION_BUFFER", group), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune NCCL_ALLREDUCE", group), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune MEMCPY_OUT_FUSION_BUFFER", group), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune NCCL_ALLREDUCE", "hvdtune ALLREDUCE alone"), 2U);
  CHECK_EQ(count(seen.spans, "hvdtune NCCL_ALLGATHER", "hvdtune ALLGATHER gathered"), 2U);
  CHECK_EQ(seen.spans.size(), 2U * 9);
}

TEST(what_goes_through_host_memory_is_queued_until_then) {
  fake_profiler();
  take_ranges();
  run_three_operations(with(false, fake_path("libnvtx.so")));
  const SeenRanges seen = take_ranges();
  CHECK_EQ(seen.ranges.size(), 6U);
  CHECK_EQ(count(seen.spans, "hvdtune MEMCPY_IN_HOST_BUFFER"), 6U);
  CHECK_EQ(count(seen.spans, "hvdtune MEMCPY_OUT_HOST_BUFFER"), 6U);
  CHECK_EQ(seen.spans.size(), 12U);
}

TEST(what_a_job_ends_before_it_began_is_not_queued_any_more) {
  const Faults faults("devices=4");
  fake_profiler();
  take_ranges();
  std::promise<void> over;
  run_job(
      2,
      [&over](int rank, Engine& engine) {
        const auto device = fake_device(rank);
        const DeviceMemory mine(device, 400);
        if (rank == 0) {
          over.get_future().wait_for(
              std::chrono::seconds(60));  // its own end would be told instead
          return;
        }
        const auto handle =
            engine.submit(submission_of("alone", rank, OpKind::kAllreduce, {&mine}, 100));
        engine.abort("a test wants it");
        failure(engine, handle);
        over.set_value();
      },
      with(true, fake_path("libnvtx.so")));
  const SeenRanges seen = take_ranges();
  CHECK_EQ(seen.ranges.size(), 1U);
  CHECK_EQ(count(seen.ranges, "hvdtune QUEUE alone"), 1U);
}

}  // namespace hvdtune::testing::test_profiler
