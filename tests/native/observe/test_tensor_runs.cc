// Records of tensors, packed in runs: nothing is lost, whatever they hold.
#include "observe/capture/tensor_runs.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "capture_files.h"
#include "check.h"

namespace hvdtune::testing::test_tensor_runs {

using namespace capture;  // NOLINT: it is what this file tests
namespace {

/// Through the ring, as batches are recorded, and out of a block's bytes.
std::vector<Tensor> there_and_back(TensorRuns& ring, const std::vector<Tensor>& tensors,
                                   PackedTensors& packed) {
  for (std::size_t at = 0; at < tensors.size();) {
    TensorRuns::Batch batch(ring, tensors[at].batch);
    const std::size_t first = at;
    for (; at < tensors.size() && tensors[at].batch == tensors[first].batch; ++at) {
      batch.put(tensors[at].name, tensors[at].submitted);
    }
    CHECK_EQ(batch.count(), at - first);
  }
  CHECK(ring.publish());
  CHECK_EQ(ring.available(), tensors.size());
  packed.clear();
  while (ring.take(SIZE_MAX, SIZE_MAX, packed)) {
  }
  CHECK_EQ(packed.tensors, tensors.size());
  CHECK_EQ(ring.available(), 0U);
  const auto bytes = packed.bytes();
  CHECK_EQ(bytes.size(), packed.size());
  const std::string back = unpacked({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                    tensors.size(), packed.runs.size());
  std::vector<Tensor> result(back.size() / sizeof(Tensor));
  if (!back.empty()) std::memcpy(result.data(), back.data(), back.size());
  const auto records = packed.unpacked();
  CHECK_EQ(records.size_bytes(), back.size());
  CHECK(back.empty() || std::memcmp(records.data(), back.data(), back.size()) == 0);
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

constexpr std::size_t kBytes = 1 << 20;

TEST(a_step_that_comes_again_is_one_run_a_batch) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
  std::vector<Tensor> tensors;
  for (std::uint32_t batch = 7; batch < 10; ++batch) {
    for (std::uint32_t name = 0; name < 1000; ++name) {
      tensors.push_back({name, batch, Nanos{batch} * kSecond + 1100 * name});
    }
  }
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.runs.size(), 3U);
  CHECK_EQ(packed.size(), 3 * sizeof(TensorRun) + 2997 * 2U);
  check_equal(there_and_back(ring, {}, packed), {});
}

TEST(tensors_that_come_slowly_are_one_run_too) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
  std::vector<Tensor> tensors;
  for (std::uint32_t name = 0; name < 161; ++name) tensors.push_back({name, 1, 600'000 * name});
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.size(), sizeof(TensorRun) + 160 * 4U);
}

TEST(a_long_batch_is_several_runs) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
  std::vector<Tensor> tensors;
  for (std::uint32_t name = 0; name < 40'000; ++name) {
    tensors.push_back({name, 1, Nanos{300} * name});
  }
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.runs.size(), 3U);
}

TEST(slow_ones_among_quick_ones_do_not_cut_a_batch_in_pieces) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
  std::vector<Tensor> tensors;
  Nanos now = 0;
  for (std::uint32_t name = 0; name < 1000; ++name) {
    tensors.push_back({name, 1, now += name % 4 == 0 ? 100'000 : 300});
  }
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.runs.size(), 2U);
  // One in a long run is worth a run of its own.
  for (std::uint32_t name = 0; name < 1000; ++name) {
    tensors[name] = {name, 2, now += name == 500 ? 100'000 : 300};
  }
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.size(), 2 * sizeof(TensorRun) + 998 * 2U);
}

TEST(tensors_without_a_name_of_their_own_are_one_run_too) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
  std::vector<Tensor> tensors;
  for (std::uint32_t at = 0; at < 100; ++at) tensors.push_back({17, 1, 1100 * at});
  for (std::uint32_t at = 0; at < 100; ++at) tensors.push_back({kNone, 2, 1100 * at});
  check_equal(there_and_back(ring, tensors, packed), tensors);
  CHECK_EQ(packed.size(), 2 * sizeof(TensorRun) + 198 * 2U);
}

TEST(a_batch_finds_room_as_a_whole_or_not_at_all) {
  TensorRuns ring(1 << 12);  // 128 runs
  const auto put = [&ring](std::uint32_t batch, std::uint32_t count, std::uint32_t names_apart) {
    {
      TensorRuns::Batch tensors(ring, batch);
      for (std::uint32_t at = 0; at < count; ++at) tensors.put(names_apart * at, Nanos{300} * at);
    }
    return ring.publish();
  };
  CHECK(put(1, 40, 2));
  CHECK(!put(2, 89, 2));  // more runs than are left
  CHECK(!ring.half_full());
  CHECK(put(3, 30, 2));
  CHECK(ring.half_full());
  CHECK(!put(4, 1000, 1));  // more times than there is room for
  CHECK(put(5, 100, 1));
  PackedTensors packed;
  CHECK(ring.take(1, SIZE_MAX, packed));
  CHECK_EQ(packed.tensors, 1U);
  CHECK(ring.take(SIZE_MAX, SIZE_MAX, packed));
  CHECK_EQ(packed.tensors, 170U);
  CHECK_EQ(packed.unpacked().back().batch, 5U);
  CHECK(!ring.take(SIZE_MAX, SIZE_MAX, packed));
  CHECK(put(6, 128, 2));  // it is empty again
}

TEST(one_thread_puts_while_another_takes) {
  TensorRuns ring(1 << 12);
  constexpr std::uint32_t kBatches = 20'000;
  std::vector<Tensor> taken;
  std::atomic<bool> over{false};
  std::thread consumer([&] {
    PackedTensors packed;
    for (bool last = false; !last;) {
      last = over.load();
      while (ring.take(40, 1 << 10, packed)) {
        const auto some = packed.unpacked();
        taken.insert(taken.end(), some.begin(), some.end());
        packed.clear();
      }
    }
  });
  std::vector<Tensor> put;
  for (std::uint32_t batch = 0; batch < kBatches; ++batch) {
    const std::size_t before = put.size();
    for (std::uint32_t at = 0; at < batch % 50; ++at) {
      const Nanos gap = batch % 3 == 0 ? 100'000 : 300;
      put.push_back({batch % 7 == 0 ? 2 * at : at, batch, Nanos{batch} + gap * at});
      if (batch % 5 == 0) ring.put(put.back());
    }
    if (batch % 5 != 0) {
      TensorRuns::Batch tensors(ring, batch);
      for (std::size_t at = before; at < put.size(); ++at) {
        tensors.put(put[at].name, put[at].submitted);
      }
    }
    if (!ring.publish()) {
      put.resize(before);
      std::this_thread::yield();
    }
  }
  over = true;
  consumer.join();
  CHECK(put.size() > 1000);
  check_equal(taken, put);
}

TEST(runs_end_where_names_batches_or_times_do_not_go_on) {
  TensorRuns ring(kBytes);
  PackedTensors packed;
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
  check_equal(there_and_back(ring, tensors, packed), tensors);
}

TEST(anything_comes_back_as_it_was) {
  std::mt19937_64 random(5);
  TensorRuns ring(kBytes);
  PackedTensors packed;
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
    check_equal(there_and_back(ring, tensors, packed), tensors);
  }
}

}  // namespace
}  // namespace hvdtune::testing::test_tensor_runs
