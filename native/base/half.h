#pragma once

#include <bit>
#include <cstdint>

namespace hvdtune {

// Scalar conversions between float and the two 16-bit formats, on their bits. They do exactly what
// the F16C instructions do: they round to the nearest, ties to even, turn values that are too large
// into infinity, and keep a NaN a (quiet) NaN with the upper bits of its payload.
//
// always_inline: these are also used in files compiled for newer CPUs, and an out-of-line copy
// from there must never be linked into code that runs on any CPU.

[[gnu::always_inline]] inline float float16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  std::uint32_t bits = 0;
  if (magnitude < 0x0400u) {  // zero and subnormal: a multiple of 2^-24
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  } else if (magnitude < 0x7c00u) {
    bits = (magnitude << 13) + (112u << 23);
  } else {
    bits = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u);
  }
  return std::bit_cast<float>(sign | bits);
}

[[gnu::always_inline]] inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, half way from the largest finite value to 2^16
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum rounds to a multiple of 2^-24
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

[[gnu::always_inline]] inline float bfloat16_to_float(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

[[gnu::always_inline]] inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace hvdtune
