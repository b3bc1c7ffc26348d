#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/clock.h"

namespace hvdtune::capture {

// The binary layout of a capture: hvdtune/timeline/record/layout.py describes the same layout, and
// the meaning of each field. All times are CLOCK_MONOTONIC of the recording rank.

/// Raised with every change that an older reader would misread.
inline constexpr int kFormat = 3;

/// An id that stands for no name or text.
inline constexpr std::uint32_t kNone = UINT32_MAX;

struct Tensor {
  std::uint32_t name = kNone;
  std::uint32_t batch = 0;
  Nanos submitted = 0;
};

/// Bits of Batch::flags.
inline constexpr std::uint8_t kOk = 1;
inline constexpr std::uint8_t kInPlace = 2;

struct Batch {
  Nanos scheduled = 0;
  Nanos first_ready = 0;
  Nanos begin = 0;
  Nanos packed = 0;
  Nanos unpacking = 0;
  Nanos end = 0;
  std::int64_t bytes = 0;
  std::uint64_t serial = 0;
  Nanos waited = 0;
  std::uint32_t tensors = 0;
  std::uint32_t process_set = 0;
  std::uint32_t epoch = 0;
  std::uint8_t kind = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reason = 0;
  std::uint8_t flags = 0;
};

struct Wait {
  Nanos begin = 0;
  Nanos end = 0;
  std::uint32_t name = kNone;
  std::uint32_t thread = 0;
};

enum class MarkKind : std::uint32_t {
  kStep = 1,
  kCycle = 2,
  kSettings = 3,
  kStall = 4,
  kAutotune = 5,
  kStraggler = 6,
  kUser = 7,
  kWindow = 8,
  kError = 9,
  kPhase = 10,
};

struct Mark {
  Nanos time = 0;
  std::int64_t value = 0;
  MarkKind kind = MarkKind::kUser;
  std::uint32_t text = kNone;
};

struct Ready {
  Nanos time = 0;
  std::uint32_t name = kNone;
  std::uint32_t rank = 0;
};

struct Counter {
  Nanos time = 0;
  double value = 0;
  std::uint32_t counter = kNone;
  std::uint32_t pad = 0;
};

template <typename Record, std::size_t kBytes>
inline constexpr bool has_layout = sizeof(Record) == kBytes && std::is_standard_layout_v<Record> &&
                                   std::is_trivially_copyable_v<Record>;
static_assert(has_layout<Tensor, 16> && offsetof(Tensor, submitted) == 8);
static_assert(has_layout<Batch, 88> && offsetof(Batch, waited) == 64);
static_assert(offsetof(Batch, tensors) == 72 && offsetof(Batch, kind) == 84);
static_assert(has_layout<Wait, 24> && offsetof(Wait, name) == 16);
static_assert(has_layout<Mark, 24> && offsetof(Mark, kind) == 16);
static_assert(has_layout<Ready, 16> && offsetof(Ready, name) == 8);
static_assert(has_layout<Counter, 24> && offsetof(Counter, counter) == 16);

}  // namespace hvdtune::capture
