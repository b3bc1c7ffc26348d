// The CPU time of batches: all of it for long ones, a sample for short ones.
#include "engine/execution/batch_cpu.h"

#include "check.h"

namespace hvdtune::testing::test_batch_cpu {
namespace {

/// A clock that counts how often it was asked.
struct Clock {
  Nanos now = 0;
  int asked = 0;

  Nanos run(BatchCpu& cpu, bool is_short, Nanos takes) {
    const auto ask = [this] {
      ++asked;
      return now;
    };
    cpu.begin(is_short, ask);
    now += takes;
    return cpu.end(ask);
  }
};

TEST(long_batches_are_measured_one_by_one) {
  BatchCpu cpu;
  Clock clock;
  for (int batch = 1; batch <= 40; ++batch)
    CHECK_EQ(clock.run(cpu, false, 100 * batch), 100 * batch);
  CHECK_EQ(clock.asked, 80);
}

TEST(short_batches_come_to_the_same_sum_at_a_fraction_of_the_questions) {
  BatchCpu cpu;
  Clock clock;
  Nanos sum = 0;
  for (int batch = 0; batch < 160; ++batch) sum += clock.run(cpu, true, 3);
  CHECK_EQ(sum, 160 * 3);
  CHECK_EQ(clock.asked, 2 * 160 / static_cast<int>(BatchCpu::kEvery));
}

TEST(short_ones_do_not_stand_for_long_ones_between_them) {
  BatchCpu cpu;
  Clock clock;
  Nanos sum = 0;
  for (int batch = 0; batch < 320; ++batch)
    sum += clock.run(cpu, batch % 2 == 0, batch % 2 == 0 ? 3 : 500);
  CHECK_EQ(sum, 160 * 3 + 160 * 500);
}

TEST(many_operations_or_bytes_are_no_short_batch) {
  CHECK(BatchCpu::is_short(1, 4));
  CHECK(BatchCpu::is_short(4, 64 << 10));
  CHECK(!BatchCpu::is_short(5, 4));
  CHECK(!BatchCpu::is_short(1, (64 << 10) + 1));
}

}  // namespace
}  // namespace hvdtune::testing::test_batch_cpu
