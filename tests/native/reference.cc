#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace hvdtune::testing {

[[gnu::flatten]] HalfFormat::HalfFormat(int fraction_bits) : fraction_bits_(fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  bias_ = (1 << (exponent_bits - 1)) - 1;
  infinity_ = ((1 << exponent_bits) - 1) << fraction_bits;
  for (int bits = 0; bits <= infinity_; ++bits) magnitudes_.push_back(magnitude(bits));
}

[[gnu::flatten]] double HalfFormat::decode(std::uint16_t bits) const {
  const int rest = bits & 0x7fff;
  if (rest > infinity_) return std::numeric_limits<double>::quiet_NaN();
  return std::copysign(magnitudes_[static_cast<std::size_t>(rest)], bits >= 0x8000 ? -1.0 : 1.0);
}

[[gnu::flatten]] std::uint16_t HalfFormat::encode(double value) const {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity_ | 1);
  const double wanted = std::fabs(value);
  const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), wanted);
  auto bits = static_cast<int>(above - magnitudes_.begin());
  if (bits > 0 && magnitudes_[static_cast<std::size_t>(bits)] != wanted) {
    // Infinity rounds like the finite value that would follow the largest one.
    const double high = bits == infinity_ ? magnitude_after_largest() : *above;
    const double low = magnitudes_[static_cast<std::size_t>(bits) - 1];
    const double middle = (low + high) / 2;
    if (wanted < middle || (wanted == middle && bits % 2 == 1)) --bits;
  }
  return static_cast<std::uint16_t>(sign | bits);
}

double HalfFormat::magnitude(int bits) const {
  const int fraction = bits & ((1 << fraction_bits_) - 1);
  const int exponent = bits >> fraction_bits_;
  if (bits == infinity_) return std::numeric_limits<double>::infinity();
  if (exponent == 0) return std::ldexp(fraction, 1 - bias_ - fraction_bits_);
  return std::ldexp(fraction + (1 << fraction_bits_), exponent - bias_ - fraction_bits_);
}

double HalfFormat::magnitude_after_largest() const { return std::ldexp(1.0, bias_ + 1); }

const HalfFormat& half_format(DType dtype) {
  static const HalfFormat float16(10);
  static const HalfFormat bfloat16(7);
  return dtype == DType::kFloat16 ? float16 : bfloat16;
}

namespace {

template <class T>
T combine_floating(KernelOp op, T a, T b) {
  if (op == KernelOp::kSum) return a + b;
  if (op == KernelOp::kProduct) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  if (op == KernelOp::kMin) return b < a ? b : a;
  return b > a ? b : a;
}

template <class T>
T combine_integers(KernelOp op, T a, T b) {
  if (op == KernelOp::kMin) return std::min(a, b);
  if (op == KernelOp::kMax) return std::max(a, b);
  const auto left = static_cast<std::uint64_t>(static_cast<std::int64_t>(a));
  const auto right = static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
  return static_cast<T>(op == KernelOp::kSum ? left + right : left * right);
}

template <class T>
T scale_integer(T value, double post) {
  if (post == 1.0) return value;
  const double scaled = std::trunc(static_cast<double>(value) * post);
  if (scaled >= std::ldexp(1.0, std::numeric_limits<T>::digits)) {
    return std::numeric_limits<T>::max();
  }
  if (scaled <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(scaled);
}

/// One element of the result: `values[k]` is what source k holds.
template <class T>
T reduce_element(DType dtype, KernelOp op, const std::vector<T>& values, double post) {
  if (dtype == DType::kBool) {
    const bool any = op == KernelOp::kSum || op == KernelOp::kMax;
    const auto is_set = [](T value) { return value != 0; };
    return static_cast<T>(any ? std::any_of(values.begin(), values.end(), is_set)
                              : std::all_of(values.begin(), values.end(), is_set));
  }
  if constexpr (std::is_floating_point_v<T>) {
    T result = values[0];
    for (std::size_t k = 1; k < values.size(); ++k) {
      result = combine_floating(op, result, values[k]);
    }
    return post == 1.0 ? result : result * static_cast<T>(post);
  } else {
    if (is_half(dtype)) {
      const HalfFormat& format = half_format(dtype);
      const auto decode = [&](T bits) {
        return static_cast<float>(format.decode(static_cast<std::uint16_t>(bits)));
      };
      float result = decode(values[0]);
      for (std::size_t k = 1; k < values.size(); ++k) {
        result = combine_floating(op, result, decode(values[k]));
      }
      return static_cast<T>(format.encode(result * static_cast<float>(post)));
    }
    T result = values[0];
    for (std::size_t k = 1; k < values.size(); ++k) {
      result = combine_integers(op, result, values[k]);
    }
    return scale_integer(result, post);
  }
}

}  // namespace

[[gnu::flatten]] Bytes reference_reduce(DType dtype, KernelOp op,
                                        const std::vector<const void*>& sources, std::size_t count,
                                        double post) {
  Bytes out(count * dtype_size(dtype));
  with_storage(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> values(sources.size());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < sources.size(); ++k) {
        std::memcpy(&values[k], static_cast<const char*>(sources[k]) + i * sizeof(T), sizeof(T));
      }
      const T result = reduce_element(dtype, op, values, post);
      std::memcpy(out.data() + i * sizeof(T), &result, sizeof(T));
    }
  });
  return out;
}

[[gnu::flatten]] void fill_random(DType dtype, void* to, std::size_t count,
                                  std::mt19937_64& generator) {
  std::normal_distribution<double> normal(0.0, 2.0);
  with_storage(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) {
      T value{};
      if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(normal(generator));
      } else if (is_half(dtype)) {
        value = static_cast<T>(half_format(dtype).encode(normal(generator)));
      } else {
        value = static_cast<T>(dtype == DType::kBool ? generator() & 1 : generator());
      }
      std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
    }
  });
}

}  // namespace hvdtune::testing
