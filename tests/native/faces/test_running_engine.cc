#include "faces/running_engine.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_job.h"
#include "faces/xla/collective_call.h"

namespace hvdtune::testing::test_running_engine {
namespace {

std::string why_there_is_none() {
  try {
    (void)faces::running_engine();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kNotInitialized);
    return error.what();
  }
  return "";
}

std::shared_ptr<Engine> engine_of_one() {
  return std::make_shared<Engine>(options_of(0, 1, fresh_endpoint()));
}

/// An allreduce as a framework's thread does one; whether it had its result.
bool reduce(const std::string& name) {
  std::vector<float> data = {1.0F, 2.0F};
  try {
    const std::shared_ptr<Engine> engine = faces::running_engine();
    const std::int64_t handle = engine->submit_blocking(in_place(OpKind::kAllreduce, name, data));
    CHECK(engine->wait(handle, monotonic_now() + kPatience));
    const OperationPtr operation = engine->take(handle);
    return operation->status.ok();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST(the_reason_for_none_is_the_last_given) {
  faces::begin_running(engine_of_one());
  CHECK(why_there_is_none().empty());
  CHECK(reduce("x"));
  faces::end_running("it has ended");
  CHECK(why_there_is_none() == "it has ended");
}

TEST(callers_meet_a_shutdown) {
  for (int turn = 0; turn < 20; ++turn) {
    std::shared_ptr<Engine> engine = engine_of_one();
    const std::weak_ptr<Engine> watched = engine;
    faces::begin_running(engine);
    std::atomic<int> done{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&done, i] {
        while (reduce("x" + std::to_string(i))) done.fetch_add(1);
      });
    }
    while (done.load() < 20) std::this_thread::yield();
    faces::end_running("over");
    engine->shutdown();
    engine.reset();
    for (std::thread& caller : callers) caller.join();
    CHECK(watched.expired());
  }
}

TEST(a_custom_call_tells_xla_its_version) {
  faces::xla::FfiMetadata metadata = {};
  faces::xla::FfiMetadataExtension extension = {};
  extension.extension_base.type = faces::xla::kFfiMetadata;
  extension.metadata = &metadata;
  faces::xla::FfiCallFrame frame = {};
  frame.extension_start = &extension.extension_base;
  CHECK(faces::xla::call_collective(&frame) == nullptr);
  CHECK(metadata.api_version.major_version == 0);
  CHECK(metadata.api_version.minor_version == 1);
}

}  // namespace hvdtune::testing::test_running_engine
