#include "collective/adasum.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "check.h"
#include "collective/shm/shm_communicator.h"
#include "reference.h"
#include "threads.h"
#include "transport/arena/arena.h"

namespace hvdtune::testing::test_adasum {
namespace {

using Vector = std::vector<long double>;

Vector pair(const Vector& a, const Vector& b) {
  long double aa = 0;
  long double bb = 0;
  long double ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
  }
  const long double ca = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const long double cb = bb == 0 ? 1 : 1 - ab / (2 * bb);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = ca * a[i] + cb * b[i];
  return sum;
}

/// The tree as the paper draws it: neighbours first.
Vector tree(std::vector<Vector> values) {
  while (values.size() > 1) {
    std::vector<Vector> next;
    for (std::size_t i = 0; i < values.size(); i += 2)
      next.push_back(pair(values[i], values[i + 1]));
    values = std::move(next);
  }
  return values.front();
}

long double decoded(DType dtype, const char* at) {
  if (dtype == DType::kFloat64) {
    double value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return half_format(dtype).decode(bits);
}

void encode(DType dtype, double value, char* at) {
  if (dtype == DType::kFloat64) {
    std::memcpy(at, &value, sizeof(value));
  } else if (dtype == DType::kFloat32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, sizeof(narrow));
  } else {
    const auto narrow = static_cast<float>(value);
    const std::uint16_t bits =
        dtype == DType::kFloat16 ? float_to_float16(narrow) : float_to_bfloat16(narrow);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-13;
    case DType::kFloat32:
      return 2e-6;
    case DType::kFloat16:
      return 2e-3;
    default:
      return 2e-2;
  }
}

/// Runs one Adasum of `inputs[rank]`, tensors of these lengths end to end, in place.
void run_adasum(std::vector<Bytes>& inputs, const std::vector<std::size_t>& elements, DType dtype,
                double prescale, double postscale) {
  const auto ranks = static_cast<int>(inputs.size());
  const auto arena = Arena::create(ranks);
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  run_threads(ranks, [&](int rank) {
    ShmCommunicator communicator(arena, members, rank, 0, Patience{});
    communicator.tune({64 << 10});
    SegmentList data;
    std::size_t done = 0;
    for (const std::size_t count : elements) {
      data.add(inputs[static_cast<std::size_t>(rank)].data() + done, count * dtype_size(dtype));
      done += count * dtype_size(dtype);
    }
    adasum(communicator, {data, data, elements, dtype, prescale, postscale});
  });
}

}  // namespace

TEST(follows_the_formula_for_every_dtype_and_number_of_ranks) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {1}, {0, 1}, {3, 5, 1000}, {7, 100003, 1, 0, 2}, {1, 1, 1}};
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const std::size_t ranks : {1U, 2U, 4U, 8U}) {
      for (const auto& elements : shapes) {
        std::size_t total = 0;
        for (const std::size_t count : elements) total += count;
        std::mt19937_64 generator(ranks * 1000 + total);
        std::normal_distribution<double> normal;
        std::vector<Bytes> data(ranks, Bytes(total * dtype_size(dtype)));
        for (Bytes& bytes : data) {
          for (std::size_t i = 0; i < total; ++i) {
            encode(dtype, normal(generator), bytes.data() + i * dtype_size(dtype));
          }
        }
        const std::vector<Bytes> inputs = data;
        run_adasum(data, elements, dtype, 0.5, 4.0);
        for (const Bytes& result : data) CHECK(result == data.front());
        std::size_t first = 0;
        for (const std::size_t count : elements) {
          std::vector<Vector> values;
          for (const Bytes& input : inputs) {
            Vector value;
            for (std::size_t i = first; i < first + count; ++i) {
              value.push_back(decoded(dtype, input.data() + i * dtype_size(dtype)) * 0.5L);
            }
            values.push_back(std::move(value));
          }
          const Vector expected = tree(values);
          for (std::size_t i = 0; i < count; ++i) {
            const long double got =
                decoded(dtype, data[0].data() + (first + i) * dtype_size(dtype));
            const long double wanted = expected[i] * 4;
            CHECK_MSG(std::fabs(got - wanted) <= tolerance(dtype) * (8 + std::fabs(wanted)),
                      dtype_name(dtype) << " ranks " << ranks << " element " << first + i << ": "
                                        << static_cast<double>(got) << " instead of "
                                        << static_cast<double>(wanted));
          }
          first += count;
        }
      }
    }
  }
}

TEST(bits_do_not_depend_on_the_other_tensors) {
  const std::vector<std::size_t> elements = {5, 1001, 0, 3, 64, 1, 777};
  for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const std::size_t width = dtype_size(dtype);
    for (const std::size_t ranks : {2U, 4U, 8U}) {
      std::mt19937_64 generator(ranks);
      std::normal_distribution<double> normal;
      std::vector<Bytes> together(ranks, Bytes(1851 * width));
      for (Bytes& bytes : together) {
        for (std::size_t i = 0; i < 1851; ++i) {
          encode(dtype, normal(generator), bytes.data() + i * width);
        }
      }
      const std::vector<Bytes> inputs = together;
      run_adasum(together, elements, dtype, 1.0, 1.0);
      std::size_t first = 0;
      for (const std::size_t count : elements) {
        const auto begin = static_cast<std::ptrdiff_t>(first * width);
        const auto end = begin + static_cast<std::ptrdiff_t>(count * width);
        std::vector<Bytes> alone;
        for (const Bytes& input : inputs) {
          alone.emplace_back(input.begin() + begin, input.begin() + end);
        }
        run_adasum(alone, {count}, dtype, 1.0, 1.0);
        const Bytes among(together[0].begin() + begin, together[0].begin() + end);
        CHECK_MSG(alone[0] == among,
                  dtype_name(dtype) << " ranks " << ranks << " tensor of " << count << " elements");
        first += count;
      }
    }
  }
}

TEST(orthogonal_vectors_add_up_equal_ones_stay_and_zeros_change_nothing) {
  const auto result = [](const std::vector<std::vector<double>>& values) {
    std::vector<Bytes> data;
    for (const auto& value : values) {
      Bytes bytes(value.size() * sizeof(double));
      std::memcpy(bytes.data(), value.data(), bytes.size());
      data.push_back(std::move(bytes));
    }
    run_adasum(data, {values.front().size()}, DType::kFloat64, 1.0, 1.0);
    std::vector<double> sum(values.front().size());
    std::memcpy(sum.data(), data[0].data(), data[0].size());
    return sum;
  };
  CHECK(result({{3, 0, 0, 0}, {0, 5, 0, 0}, {0, 0, 7, 0}, {0, 0, 0, 9}}) ==
        (std::vector<double>{3, 5, 7, 9}));
  CHECK(result({{1, 2, -4}, {1, 2, -4}, {1, 2, -4}, {1, 2, -4}}) ==
        (std::vector<double>{1, 2, -4}));
  CHECK(result({{0, 0, 0}, {1, 2, -4}}) == (std::vector<double>{1, 2, -4}));
  CHECK(result({{0, 0}, {0, 0}}) == (std::vector<double>{0, 0}));
  // Squares below sqrt(DBL_MIN) count as zero: both are taken whole.
  CHECK(result({{1e-80, 0}, {1e-80, 0}}) == (std::vector<double>{2e-80, 0}));
}

}  // namespace hvdtune::testing::test_adasum
