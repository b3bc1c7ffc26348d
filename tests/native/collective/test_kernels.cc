#include "collective/kernels/kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/half.h"
#include "check.h"
#include "reference.h"

namespace hvdtune::testing::test_kernels {
namespace {

constexpr KernelOp kOps[] = {KernelOp::kSum, KernelOp::kMin, KernelOp::kMax, KernelOp::kProduct};

ReduceKernel kernel_of(const KernelTable& table, DType dtype, KernelOp op) {
  return table.reduce[static_cast<int>(dtype)][static_cast<int>(op)];
}

/// Arrays of `count` elements, starting one element after an aligned address if `shifted`, with
/// one guard element behind.
class Arrays {
 public:
  Arrays(DType dtype, int arrays, std::size_t count, bool shifted)
      : size_(dtype_size(dtype)), first_(shifted ? size_ : 0) {
    for (int k = 0; k < arrays; ++k) {
      // operator new aligns to 16 bytes, so a shifted array is misaligned for every vector.
      storage_.emplace_back(first_ + (count + 1) * size_, static_cast<char>(0x5a));
    }
  }

  void* operator[](std::size_t k) { return storage_[k].data() + first_; }
  [[nodiscard]] std::vector<const void*> pointers() const {
    std::vector<const void*> out;
    for (const Bytes& bytes : storage_) out.push_back(bytes.data() + first_);
    return out;
  }
  [[nodiscard]] bool guards_intact() const {
    for (const Bytes& bytes : storage_) {
      for (std::size_t i = 0; i < size_; ++i) {
        if (bytes[bytes.size() - 1 - i] != 0x5a) return false;
      }
    }
    return true;
  }

 private:
  std::size_t size_;
  std::size_t first_;
  std::vector<Bytes> storage_;
};

struct Case {
  DType dtype;
  KernelOp op;
  std::size_t count;
  int sources;
  double post;
};

/// Runs one table over `inputs`; the result goes to source `in_place`, or elsewhere if it is -1.
void check_table(const KernelTable& table, const Case& test, const Arrays& inputs, int in_place,
                 bool shifted, const Bytes& expected) {
  Arrays work = inputs;
  Arrays separate(test.dtype, 1, test.count, shifted);
  const std::vector<const void*> sources = work.pointers();
  void* dst = in_place >= 0 ? work[static_cast<std::size_t>(in_place)] : separate[0];
  kernel_of(table, test.dtype, test.op)(dst, sources.data(), test.sources, test.count, test.post);
  const auto at = first_difference(test.dtype, dst, expected.data(), test.count);
  CHECK_MSG(at < 0, table.name << " " << dtype_name(test.dtype) << " op "
                               << static_cast<int>(test.op) << " count " << test.count
                               << " sources " << test.sources << " post " << test.post
                               << " in place " << in_place << " shifted " << shifted << ": element "
                               << at << " is " << show_element(test.dtype, dst, at) << ", not "
                               << show_element(test.dtype, expected.data(), at));
  CHECK(work.guards_intact());
  CHECK(separate.guards_intact());
}

void check_everywhere(const Case& test, std::mt19937_64& generator) {
  for (const bool shifted : {false, true}) {
    Arrays inputs(test.dtype, test.sources, test.count, shifted);
    for (int k = 0; k < test.sources; ++k) {
      fill_random(test.dtype, inputs[static_cast<std::size_t>(k)], test.count, generator);
    }
    const Bytes expected =
        reference_reduce(test.dtype, test.op, inputs.pointers(), test.count, test.post);
    for (const KernelTable* table : usable_kernels()) {
      for (const int in_place : {-1, 0, test.sources - 1}) {
        check_table(*table, test, inputs, in_place, shifted, expected);
      }
    }
  }
}

/// Reduces `sources` (arrays of equal length) with `table`.
template <class T>
std::vector<T> run(const KernelTable& table, DType dtype, KernelOp op,
                   const std::vector<std::vector<T>>& sources, double post = 1.0) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<T> out(sources[0].size());
  kernel_of(table, dtype, op)(out.data(), pointers.data(), static_cast<int>(pointers.size()),
                              out.size(), post);
  return out;
}

constexpr std::size_t kLanes = 67;

}  // namespace

TEST(every_dtype_operator_size_and_number_of_sources) {
  std::mt19937_64 generator(1);
  for (int code = 0; code < kDTypeCount; ++code) {
    for (const KernelOp op : kOps) {
      for (const std::size_t count : {0, 1, 7, 64, 1000, 4099}) {
        for (const int sources : {1, 2, 3, 4, 5}) {
          check_everywhere({static_cast<DType>(code), op, count, sources, 1.0}, generator);
        }
      }
    }
  }
}

TEST(post_scales_every_type_but_bool) {
  std::mt19937_64 generator(2);
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    if (dtype == DType::kBool) continue;
    for (const KernelOp op : kOps) {
      for (const double post : {0.0, 0.25, 1.0 / 3.0, -2.5}) {
        check_everywhere({dtype, op, 301, 3, post}, generator);
      }
    }
  }
}

TEST(scale_equals_a_reduction_of_one_source) {
  std::mt19937_64 generator(3);
  for (const KernelTable* table : usable_kernels()) {
    for (int code = 0; code < kDTypeCount; ++code) {
      const auto dtype = static_cast<DType>(code);
      const double factor = dtype == DType::kBool ? 1.0 : 0.7;
      Arrays arrays(dtype, 2, 133, true);
      fill_random(dtype, arrays[0], 133, generator);
      const Bytes expected = reference_reduce(dtype, KernelOp::kSum, {arrays[0]}, 133, factor);
      const ScaleKernel scale = table->scale[code];
      scale(arrays[1], arrays[0], 133, factor);
      CHECK_EQ(first_difference(dtype, arrays[1], expected.data(), 133), -1);
      scale(arrays[0], arrays[0], 133, factor);
      CHECK_EQ(first_difference(dtype, arrays[0], expected.data(), 133), -1);
      CHECK(arrays.guards_intact());
    }
  }
}

TEST(sums_are_close_to_exact_ones) {
  constexpr std::size_t kCount = 4099;
  constexpr int kSources = 5;
  std::mt19937_64 generator(4);
  std::normal_distribution<double> normal;
  for (const KernelTable* table : usable_kernels()) {
    std::vector<std::vector<float>> sources(kSources, std::vector<float>(kCount));
    for (auto& source : sources) {
      for (float& value : source) value = static_cast<float>(normal(generator));
    }
    const auto sums = run(*table, DType::kFloat32, KernelOp::kSum, sources, 1.0 / kSources);
    for (std::size_t i = 0; i < kCount; ++i) {
      long double exact = 0;
      long double magnitude = 0;
      for (const auto& source : sources) {
        exact += source[i];
        magnitude += std::fabs(source[i]);
      }
      const long double error = std::fabs(sums[i] - exact / kSources);
      CHECK(error <= (kSources + 1) * 0x1p-24L * magnitude / kSources);
    }
  }
}

TEST(min_and_max_give_nan_if_any_source_is_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : usable_kernels()) {
    for (const KernelOp op : {KernelOp::kMin, KernelOp::kMax}) {
      for (std::size_t where = 0; where < 3; ++where) {
        std::vector<std::vector<float>> floats(3, std::vector<float>(kLanes, 1.0f));
        std::vector<std::vector<double>> doubles(3, std::vector<double>(kLanes, 1.0));
        std::vector<std::vector<std::uint16_t>> halfs(3, std::vector<std::uint16_t>(kLanes, 0));
        for (std::size_t i = 0; i < kLanes; i += 2) {
          floats[where][i] = nan;
          doubles[where][i] = nan;
          halfs[where][i] = 0x7fff;  // a NaN in both 16-bit formats
        }
        const auto float_result = run(*table, DType::kFloat32, op, floats);
        const auto double_result = run(*table, DType::kFloat64, op, doubles);
        const auto half_result = run(*table, DType::kFloat16, op, halfs);
        const auto bhalf_result = run(*table, DType::kBfloat16, op, halfs);
        for (std::size_t i = 0; i < kLanes; ++i) {
          CHECK_EQ(std::isnan(float_result[i]), i % 2 == 0);
          CHECK_EQ(std::isnan(double_result[i]), i % 2 == 0);
          CHECK_EQ(std::isnan(float16_to_float(half_result[i])), i % 2 == 0);
          CHECK_EQ(std::isnan(bfloat16_to_float(bhalf_result[i])), i % 2 == 0);
        }
      }
    }
  }
}

TEST(integer_sums_and_products_wrap_around) {
  for (const KernelTable* table : usable_kernels()) {
    const std::vector<std::vector<std::int8_t>> bytes{std::vector<std::int8_t>(kLanes, 127),
                                                      std::vector<std::int8_t>(kLanes, 2)};
    CHECK_EQ(run(*table, DType::kInt8, KernelOp::kSum, bytes)[kLanes - 1], std::int8_t{-127});
    CHECK_EQ(run(*table, DType::kInt8, KernelOp::kProduct, bytes)[0], std::int8_t{-2});
    const std::vector<std::vector<std::int64_t>> longs{std::vector<std::int64_t>(kLanes, INT64_MAX),
                                                       std::vector<std::int64_t>(kLanes, 3)};
    CHECK_EQ(run(*table, DType::kInt64, KernelOp::kSum, longs)[0], INT64_MIN + 2);
    CHECK_EQ(run(*table, DType::kInt64, KernelOp::kProduct, longs)[kLanes - 1], INT64_MAX - 2);
  }
}

TEST(scaled_integers_are_truncated_and_saturated) {
  for (const KernelTable* table : usable_kernels()) {
    const std::vector<std::vector<std::int32_t>> ints{{7, -7, INT32_MAX, INT32_MIN, 0}};
    const std::vector<std::int32_t> halves{3, -3, INT32_MAX / 2, INT32_MIN / 2, 0};
    CHECK(run(*table, DType::kInt32, KernelOp::kSum, ints, 0.5) == halves);
    const std::vector<std::int32_t> doubled{14, -14, INT32_MAX, INT32_MIN, 0};
    CHECK(run(*table, DType::kInt32, KernelOp::kSum, ints, 2.0) == doubled);
    const std::vector<std::vector<std::int64_t>> longs{{INT64_MAX, INT64_MIN, 3, -3}};
    const std::vector<std::int64_t> longs_up{INT64_MAX, INT64_MIN, 4, -4};
    CHECK(run(*table, DType::kInt64, KernelOp::kSum, longs, 1.5) == longs_up);
    const std::vector<std::vector<std::uint8_t>> bytes{{200, 3, 0}};
    const std::vector<std::uint8_t> negative{0, 0, 0};
    CHECK(run(*table, DType::kUint8, KernelOp::kSum, bytes, -1.0) == negative);
    const std::vector<std::uint8_t> saturated{255, 6, 0};
    CHECK(run(*table, DType::kUint8, KernelOp::kSum, bytes, 2.0) == saturated);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    CHECK(run(*table, DType::kUint8, KernelOp::kSum, bytes, nan) == negative);
  }
}

TEST(halfs_are_rounded_once_to_nearest_even) {
  for (const KernelTable* table : usable_kernels()) {
    const auto sum16 = [&](std::uint16_t a, std::uint16_t b, std::uint16_t c) {
      const std::vector<std::vector<std::uint16_t>> sources{std::vector<std::uint16_t>(kLanes, a),
                                                            std::vector<std::uint16_t>(kLanes, b),
                                                            std::vector<std::uint16_t>(kLanes, c)};
      const auto result = run(*table, DType::kFloat16, KernelOp::kSum, sources);
      CHECK_EQ(result[0], result[kLanes - 1]);
      return result[0];
    };
    const std::uint16_t two_to_11 = float_to_float16(2048);
    const std::uint16_t one = float_to_float16(1);
    // 2049 lies half way and goes to the even 2048; rounding after each addition would give 2048
    // for 2050 as well.
    CHECK_EQ(float16_to_float(sum16(two_to_11, one, 0)), 2048.0f);
    CHECK_EQ(float16_to_float(sum16(two_to_11, one, one)), 2050.0f);
    CHECK_EQ(float16_to_float(sum16(float_to_float16(2050), one, 0)), 2052.0f);
    // 65504 + 16 = 65520 lies half way to 2^16, which is infinity.
    const std::uint16_t largest = float_to_float16(65504);
    CHECK_EQ(sum16(largest, float_to_float16(15), 0), largest);
    CHECK_EQ(sum16(largest, float_to_float16(16), 0), 0x7c00);
    // An intermediate overflow of float16 does no harm.
    CHECK_EQ(sum16(largest, largest, static_cast<std::uint16_t>(largest | 0x8000)), largest);
  }
}

TEST(scalar_half_conversions_follow_the_formats) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    const bool ieee = dtype == DType::kFloat16;
    const HalfFormat& format = half_format(dtype);
    for (int bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const float value = ieee ? float16_to_float(half) : bfloat16_to_float(half);
      const double expected = format.decode(half);
      if (std::isnan(expected)) {
        CHECK(std::isnan(value));
        continue;
      }
      CHECK_EQ(static_cast<double>(value), expected);
      CHECK_EQ(ieee ? float_to_float16(value) : float_to_bfloat16(value), half);
      // Just below, at, and just above the middle between this value and the next.
      const double next = format.decode(static_cast<std::uint16_t>(bits + 1));
      if (!std::isfinite(expected) || std::isnan(next)) continue;
      const auto middle = static_cast<float>((expected + next) / 2);
      for (const float direction : {-INFINITY, middle, INFINITY}) {
        const float near = std::nextafter(middle, direction);
        const std::uint16_t got = ieee ? float_to_float16(near) : float_to_bfloat16(near);
        CHECK_EQ(got, format.encode(near));
      }
    }
  }
}

TEST(vector_half_conversions_equal_the_scalar_ones) {
  using HalfArray = std::vector<std::uint16_t>;
  std::mt19937_64 generator(5);
  std::uniform_real_distribution<double> exponents(-12.0, 12.0);
  HalfArray halfs(0x10000);
  for (std::size_t bits = 0; bits < halfs.size(); ++bits) {
    halfs[bits] = static_cast<std::uint16_t>(bits);
  }
  const HalfArray zeros(halfs.size(), 0x8000);  // adding -0 changes no value
  for (const KernelTable* table : usable_kernels()) {
    for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
      const bool ieee = dtype == DType::kFloat16;
      const auto sums = run<std::uint16_t>(*table, dtype, KernelOp::kSum, {halfs, zeros});
      for (std::size_t i = 0; i < halfs.size(); ++i) {
        const bool nan = std::isnan(half_format(dtype).decode(halfs[i]));
        CHECK_EQ(sums[i], halfs[i] | (nan ? (ieee ? 0x0200 : 0x0040) : 0));  // quiet, payload kept
      }
      // Every value times factors with a full fraction: all ways to round, and subnormals.
      for (int round = 0; round < 10; ++round) {
        const double factor = std::exp2(exponents(generator));
        const auto scaled = run<std::uint16_t>(*table, dtype, KernelOp::kSum, {halfs}, factor);
        for (std::size_t i = 0; i < halfs.size(); ++i) {
          const float value = ieee ? float16_to_float(halfs[i]) : bfloat16_to_float(halfs[i]);
          const float product = value * static_cast<float>(factor);
          CHECK_EQ(scaled[i], ieee ? float_to_float16(product) : float_to_bfloat16(product));
        }
      }
    }
  }
}

TEST(the_best_table_is_the_last_usable_one) {
  const auto tables = usable_kernels();
  CHECK_EQ(std::string(tables.front()->name), "portable");
  CHECK_EQ(&best_kernels(), tables.back());
  CHECK(reduce_kernel(DType::kFloat32, ReduceOp::kMax) ==
        kernel_of(best_kernels(), DType::kFloat32, KernelOp::kMax));
  CHECK(scale_kernel(DType::kInt8) == best_kernels().scale[static_cast<int>(DType::kInt8)]);
}

}  // namespace hvdtune::testing::test_kernels
