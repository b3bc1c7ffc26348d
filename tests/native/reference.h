#pragma once

// Reductions written down as plainly as possible, one element at a time, to compare results with.
// reference.cc is compiled without a sanitizer: it would take most of the time of some tests. So it
// inlines all it calls of the standard library, of which the linker may have taken the sanitizer's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "check.h"
#include "collective/kernels/kernels.h"

namespace hvdtune::testing {

/// A 16-bit format given by its number of fraction bits, decoded through its definition (not
/// through bit tricks as in base/half.h) and encoded by looking for the nearest value.
class HalfFormat {
 public:
  explicit HalfFormat(int fraction_bits);

  [[nodiscard]] double decode(std::uint16_t bits) const;
  [[nodiscard]] std::uint16_t encode(double value) const;
  [[nodiscard]] int infinity() const { return infinity_; }

 private:
  [[nodiscard]] double magnitude(int bits) const;
  [[nodiscard]] double magnitude_after_largest() const;

  int fraction_bits_;
  int bias_;
  int infinity_;
  std::vector<double> magnitudes_;
};

const HalfFormat& half_format(DType dtype);

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

/// Calls `f` with a value of the C++ type that holds one element of `dtype`.
template <class F>
auto with_storage(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:
      return f(std::uint8_t{});
    case DType::kInt8:
      return f(std::int8_t{});
    case DType::kUint16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return f(std::uint16_t{});
    case DType::kInt16:
      return f(std::int16_t{});
    case DType::kInt32:
      return f(std::int32_t{});
    case DType::kInt64:
      return f(std::int64_t{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      break;
  }
  return f(double{});
}

using Bytes = std::vector<char>;

/// What reducing `count` elements of `sources` must give.
Bytes reference_reduce(DType dtype, KernelOp op, const std::vector<const void*>& sources,
                       std::size_t count, double post);

/// Fills `count` elements with values whose sums and products mostly stay finite.
void fill_random(DType dtype, void* to, std::size_t count, std::mt19937_64& generator);

/// True if an element's bytes are a NaN of `dtype`.
inline bool is_nan(DType dtype, const char* element) {
  return with_storage(dtype, [&](auto zero) {
    decltype(zero) value{};
    std::memcpy(&value, element, sizeof(value));
    if constexpr (std::is_floating_point_v<decltype(zero)>) {
      return std::isnan(value);
    } else {
      return is_half(dtype) &&
             std::isnan(half_format(dtype).decode(static_cast<std::uint16_t>(value)));
    }
  });
}

/// Index of the first element that differs, or -1. Any two NaNs are equal, 0 and -0 are not.
inline std::int64_t first_difference(DType dtype, const void* left, const void* right,
                                     std::size_t count) {
  const std::size_t size = dtype_size(dtype);
  if (count == 0 || std::memcmp(left, right, count * size) == 0) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    const char* a = static_cast<const char*>(left) + i * size;
    const char* b = static_cast<const char*>(right) + i * size;
    if (std::memcmp(a, b, size) != 0 && !(is_nan(dtype, a) && is_nan(dtype, b))) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

/// The element as text, for messages.
inline std::string show_element(DType dtype, const void* array, std::int64_t index) {
  return with_storage(dtype, [&](auto zero) {
    decltype(zero) value{};
    std::memcpy(&value, static_cast<const char*>(array) + index * sizeof(value), sizeof(value));
    return show(value);
  });
}

}  // namespace hvdtune::testing
