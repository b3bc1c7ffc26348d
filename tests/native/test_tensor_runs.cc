// Records of tensors, packed in runs: nothing is lost, whatever they hold.
#include "observe/tensor_runs.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "capture_files.h"
#include "check.h"

namespace hvdtune::capture {
namespace {

std::vector<Tensor> there_and_back(TensorRuns& runs, const std::vector<Tensor>& tensors) {
  runs.pack(tensors);
  const auto bytes = runs.bytes();
  CHECK_EQ(bytes.size(), runs.size());
  const std::string back = unpacked({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                    tensors.size(), runs.count());
  std::vector<Tensor> result(back.size() / sizeof(Tensor));
  if (!back.empty()) std::memcpy(result.data(), back.data(), back.size());
  return result;
}

void check_equal(const std::vector<Tensor>& one, const std::vector<Tensor>& other) {
  CHECK_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK_EQ(one[i].name, other[i].name);
    CHECK_EQ(one[i].batch, other[i].batch);
    CHECK_EQ(one[i].submitted, other[i].submitted);
  }
}

TEST(a_step_that_comes_again_is_one_run_a_batch) {
  TensorRuns runs;
  std::vector<Tensor> tensors;
  for (std::uint32_t batch = 7; batch < 10; ++batch) {
    for (std::uint32_t name = 0; name < 1000; ++name) {
      tensors.push_back({name, batch, Nanos{batch} * kSecond + 1100 * name});
    }
  }
  check_equal(there_and_back(runs, tensors), tensors);
  CHECK_EQ(runs.count(), 3U);
  CHECK_EQ(runs.size(), 3 * sizeof(TensorRun) + 2997 * 4U);
  check_equal(there_and_back(runs, {}), {});
}

TEST(runs_end_where_names_batches_or_times_do_not_go_on) {
  TensorRuns runs;
  constexpr Nanos kWide = Nanos{1} << 31;
  const std::vector<Tensor> tensors = {
      {5, 1, 1000},
      {6, 1, 900},                  // submitted before: times of a batch are in any order
      {6, 1, 950},                  // the same name again
      {7, 2, 960},                  // another batch
      {8, 2, 960 + kWide},          // longer than a record holds
      {9, 2, 960 + 2 * kWide - 1},  // just not
      {10, 2, 959 + kWide},         // and back
      {kNone, 3, 0},
      {kNone, 3, 1},  // names that found no room are none
      {0, 3, 2},      // which 0 does not follow
      {1, 3, std::numeric_limits<Nanos>::max()},
  };
  check_equal(there_and_back(runs, tensors), tensors);
}

TEST(anything_comes_back_as_it_was) {
  std::mt19937_64 random(5);
  TensorRuns runs;
  for (int round = 0; round < 200; ++round) {
    std::vector<Tensor> tensors;
    Tensor tensor{static_cast<std::uint32_t>(random() % 50), 1, 1'000'000};
    for (std::size_t count = random() % 300; count > 0; --count) {
      tensor.name = random() % 4 > 0 ? tensor.name + 1 : static_cast<std::uint32_t>(random() % 50);
      tensor.batch += random() % 10 == 0 ? 1 : 0;
      tensor.submitted += static_cast<Nanos>(random() % 4000) - 1000;
      if (random() % 20 == 0) tensor.submitted += 10 * kSecond;
      tensors.push_back(tensor);
    }
    check_equal(there_and_back(runs, tensors), tensors);
  }
}

}  // namespace
}  // namespace hvdtune::capture
