#include "faces/xla/untyped_call.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "engine_job.h"
#include "faces/running_engine.h"
#include "faces/step_ends.h"

namespace hvdtune::testing::test_untyped_call {
namespace {

// The kind, the operator, the root, the set, no group, members, place, equal rows.
const std::string kSum = "0 1 0 0 0 0 0 1 ";
const std::string kOfTwo = "1 7 1 2 ";  // tensors; float32, one dimension of 2

/// An allreduce of {1, 2} by a custom call with this text: its result, and its error.
std::pair<std::vector<float>, std::optional<std::string>> called(const std::string& text) {
  const std::vector<float> given = {1.0F, 2.0F};
  std::vector<float> made = {0.0F, 0.0F};
  const std::int32_t before = 5;
  std::int32_t after = 0;
  const void* operands[] = {given.data(), &before};
  void* results[] = {made.data(), &after};
  std::optional<std::string> failure;
  faces::xla::call_untyped_collective(static_cast<void*>(results), operands, text.data(),
                                      text.size(), &failure);
  CHECK(failure || after == before);
  return {made, failure};
}

}  // namespace

TEST(a_text_says_what_is_done) {
  faces::begin_running(std::make_shared<Engine>(options_of(0, 1, fresh_endpoint())));
  const auto [made, failure] = called(kSum + "0.5 3.0 " + kOfTwo + "7 1 2 a name with spaces");
  CHECK(!failure);
  CHECK(made == std::vector<float>({1.5F, 3.0F}));
  faces::end_running("it has ended");
}

TEST(a_step_ends_for_one_owner_in_a_job) {
  const std::int32_t before = 5;
  const void* operands[] = {&before};
  const auto end_of = [&](const std::string& text) {
    const std::uint64_t counted = faces::steps_ended();
    std::int32_t after = 0;
    std::optional<std::string> failure;
    faces::xla::call_untyped_step_end(&after, operands, text.data(), text.size(), &failure);
    CHECK(failure || after == before);
    return failure.value_or(std::to_string(faces::steps_ended() - counted));
  };
  faces::end_running("it has ended");
  CHECK(end_of("17 ") == "0");
  faces::begin_running(std::make_shared<Engine>(options_of(0, 1, fresh_endpoint())));
  CHECK(end_of("17 ") == "1");
  for (int i = 0; i < 20; ++i) CHECK(end_of("18 ") == "0");
  CHECK(end_of("17 ") == "1");
  int foreign = 1;
  while (end_of("18 ") == "0") ++foreign;
  CHECK(foreign > 20);
  CHECK(end_of("17 ") == "0");
  CHECK(end_of("18 ") == "1");
  CHECK(end_of("").starts_with("hvdtune's custom call"));
  faces::leave_steps_to_program();
  CHECK(end_of("18 ") == "0");
  faces::end_running("it has ended");
}

TEST(errors_are_texts) {
  faces::end_running("it has ended");
  const std::string end = "1.0 1.0 " + kOfTwo + "7 1 2 x";
  CHECK(called(kSum + end).second == "it has ended");
  for (const std::string& text :
       {std::string(), kSum, "0 1 " + end, kSum + "1.0 1.0 1 7 99999999999 2 ",
        kSum + "1.0 1.0 1 99 1 2 7 1 2 x", kSum + "1.0 1.0 -1 7 1 2 7 1 2 x"}) {
    CHECK(called(text).second.value_or("").starts_with("hvdtune's custom call"));
  }
}

TEST(a_library_that_is_not_loaded_or_lacks_them_is_named) {
  for (const auto& [library, words] :
       {std::pair<std::string, std::string>("libnothing.so.7", "libnothing.so.7 is not loaded"),
        {"libc.so.6", "libc.so.6 lacks _ZN3xla"}}) {
    std::string text;
    try {
      faces::xla::register_untyped_calls(library);
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK(text.starts_with(words));
  }
}

}  // namespace hvdtune::testing::test_untyped_call
