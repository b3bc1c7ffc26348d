// The reduction kernels, for one vector width. Included by exactly one kernels_<isa>.cc each, which
// first defines HVDTUNE_VECTOR_BYTES: everything here has internal linkage, so that code compiled
// for a newer CPU cannot be linked into a table for an older one. For the same reason nothing here
// calls a function template of the standard library.

#pragma once

#ifndef HVDTUNE_VECTOR_BYTES
#error "define HVDTUNE_VECTOR_BYTES before including kernels_impl.h"
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if HVDTUNE_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

#include "collective/kernels/kernels.h"

#define HVDTUNE_INLINE [[gnu::always_inline]] inline

namespace hvdtune {
namespace {

inline constexpr std::size_t kVectorBytes = HVDTUNE_VECTOR_BYTES;
/// Independent accumulators: enough to hide the latency of an addition.
inline constexpr int kUnroll = 4;

template <class T, std::size_t Lanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(Lanes * sizeof(T))));
};
template <class T, std::size_t Lanes>
using Vector = typename VectorOf<T, Lanes>::Type;

inline constexpr std::size_t kFloatLanes = kVectorBytes / sizeof(float);
using Floats = Vector<float, kFloatLanes>;
using Words = Vector<std::uint32_t, kFloatLanes>;
using SignedWords = Vector<std::int32_t, kFloatLanes>;
using Halfs = Vector<std::uint16_t, kFloatLanes>;

// ---- operators on whole vectors -------------------------------------------------------------

struct SumOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return a + b;
  }
};

struct ProductOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return a * b;
  }
};

// The first operand wins a tie (0 against -0) and a NaN on either side wins over a number; on
// integers `b != b` is folded away.
struct MinOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

struct MaxOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};

struct OrOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return a | b;
  }
};

struct AndOp {
  template <class V>
  HVDTUNE_INLINE static V apply(V a, V b) {
    return a & b;
  }
};

// ---- conversions of the 16-bit formats ------------------------------------------------------

#if HVDTUNE_VECTOR_BYTES == 64

// The maskz forms with a full mask: g++ 12 warns about uninitialized values in the plain forms.
constexpr __mmask16 kAllLanes = 0xffff;

HVDTUNE_INLINE Floats float16_load(Halfs h) {
  return (Floats)_mm512_maskz_cvtph_ps(kAllLanes, (__m256i)h);
}

HVDTUNE_INLINE Halfs float16_store(Floats f) {
  return (Halfs)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)f,
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif HVDTUNE_VECTOR_BYTES == 32

HVDTUNE_INLINE Floats float16_load(Halfs h) { return (Floats)_mm256_cvtph_ps((__m128i)h); }

HVDTUNE_INLINE Halfs float16_store(Floats f) {
  return (Halfs)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#else

HVDTUNE_INLINE Words widen(Halfs h) { return __builtin_convertvector(h, Words); }

HVDTUNE_INLINE Halfs narrow(Words w) { return __builtin_convertvector(w, Halfs); }

// The two functions below are float16_to_float and float_to_float16 of base/half.h, lane by lane.
HVDTUNE_INLINE Floats float16_load(Halfs h) {
  const Words bits = widen(h);
  const Words magnitude = bits & 0x7fffu;
  const Words normal = (magnitude << 13) + (112u << 23);
  const Words tiny = (Words)(__builtin_convertvector((SignedWords)magnitude, Floats) * 0x1p-24f);
  const Words quiet = (Words)(magnitude > 0x7c00u) & 0x00400000u;
  const Words special = (magnitude << 13) | 0x7f800000u | quiet;
  const Words finite = (magnitude < 0x0400u) ? tiny : normal;
  const Words value = (magnitude < 0x7c00u) ? finite : special;
  return (Floats)(value | ((bits & 0x8000u) << 16));
}

HVDTUNE_INLINE Halfs float16_store(Floats f) {
  const Words bits = (Words)f;
  const Words magnitude = bits & 0x7fffffffu;
  const Words normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const Words tiny = (Words)((Floats)magnitude + 0.5f) - 0x3f000000u;
  const Words nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  const Words infinity = Words{} + 0x7c00u;
  const Words finite = (magnitude < 0x38800000u) ? tiny : normal;
  const Words special = (magnitude > 0x7f800000u) ? nan : infinity;
  const Words value = (magnitude < 0x477ff000u) ? finite : special;
  return narrow(value | ((bits >> 16) & 0x8000u));
}

#endif

// A vector of bfloat16 as floats: those at even positions, and those at odd ones. Then nothing has
// to move between lanes, and lane-by-lane operations do not depend on the order.
struct FloatPair {
  Floats even;
  Floats odd;
};

HVDTUNE_INLINE FloatPair bfloat16_load(Words w) {
  return {(Floats)(w << 16), (Floats)(w & 0xffff0000u)};
}

/// Rounds to the nearest bfloat16, in the upper half. A NaN needs no special case: a NaN that comes
/// from bfloat16 numbers, with or without an operation, has a payload that ends in zeros, so that
/// nothing is carried into its upper half (base/half.h rounds any float).
HVDTUNE_INLINE Words bfloat16_round(Floats f) {
  const Words bits = (Words)f;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

HVDTUNE_INLINE Words bfloat16_store(FloatPair pair) {
  return (bfloat16_round(pair.even) >> 16) | (bfloat16_round(pair.odd) & 0xffff0000u);
}

// ---- element types --------------------------------------------------------------------------
// Each has: Storage (a vector as stored in memory), Accumulator (as it is reduced), load, store,
// apply (an operator on two accumulators), Scale (a factor ready for use) and multiply.

template <class V>
struct OneVector {
  using Accumulator = V;
  template <class Op>
  HVDTUNE_INLINE static Accumulator apply(Accumulator a, Accumulator b) {
    return Op::apply(a, b);
  }
};

template <class T>
struct Floating : OneVector<Vector<T, kVectorBytes / sizeof(T)>> {
  using Storage = Vector<T, kVectorBytes / sizeof(T)>;
  using Accumulator = Storage;
  using Scale = T;
  HVDTUNE_INLINE static Scale scale(double factor) { return static_cast<T>(factor); }
  HVDTUNE_INLINE static Accumulator load(Storage v) { return v; }
  HVDTUNE_INLINE static Storage store(Accumulator v) { return v; }
  HVDTUNE_INLINE static Accumulator multiply(Accumulator v, Scale factor) { return v * factor; }
};

struct Float16 : OneVector<Floats> {
  using Storage = Halfs;
  using Scale = float;
  HVDTUNE_INLINE static Scale scale(double factor) { return static_cast<float>(factor); }
  HVDTUNE_INLINE static Accumulator load(Storage v) { return float16_load(v); }
  HVDTUNE_INLINE static Storage store(Accumulator v) { return float16_store(v); }
  HVDTUNE_INLINE static Accumulator multiply(Accumulator v, Scale factor) { return v * factor; }
};

struct Bfloat16 {
  using Storage = Words;
  using Accumulator = FloatPair;
  using Scale = float;
  HVDTUNE_INLINE static Scale scale(double factor) {
    // A NaN whose payload ends in zeros: see bfloat16_round.
    return factor == factor ? static_cast<float>(factor) : __builtin_nanf("");
  }
  HVDTUNE_INLINE static Accumulator load(Storage v) { return bfloat16_load(v); }
  HVDTUNE_INLINE static Storage store(Accumulator v) { return bfloat16_store(v); }
  template <class Op>
  HVDTUNE_INLINE static Accumulator apply(Accumulator a, Accumulator b) {
    return {Op::apply(a.even, b.even), Op::apply(a.odd, b.odd)};
  }
  HVDTUNE_INLINE static Accumulator multiply(Accumulator v, Scale factor) {
    return {v.even * factor, v.odd * factor};
  }
};

/// `value` without its fraction, or the nearest value that T can hold; 0 for a NaN.
template <class T>
HVDTUNE_INLINE T saturate(double value) {
  constexpr T kLowest = std::numeric_limits<T>::min();
  constexpr T kHighest = std::numeric_limits<T>::max();
  // For 64 bits kHighest rounds up to 2^63, which is itself out of range: hence >=, not >.
  if (value >= static_cast<double>(kHighest)) return kHighest;
  if (value <= static_cast<double>(kLowest)) return kLowest;
  return value == value ? static_cast<T>(value) : T{0};
}

template <class T>
struct Integer : OneVector<Vector<T, kVectorBytes / sizeof(T)>> {
  using Storage = Vector<T, kVectorBytes / sizeof(T)>;
  using Accumulator = Storage;
  using Scale = double;
  HVDTUNE_INLINE static Scale scale(double factor) { return factor; }
  HVDTUNE_INLINE static Accumulator load(Storage v) { return v; }
  HVDTUNE_INLINE static Storage store(Accumulator v) { return v; }
  HVDTUNE_INLINE static Accumulator multiply(Accumulator v, Scale factor) {
    for (std::size_t lane = 0; lane < kVectorBytes / sizeof(T); ++lane) {
      v[lane] = saturate<T>(static_cast<double>(v[lane]) * factor);
    }
    return v;
  }
};

struct Bool : OneVector<Vector<std::uint8_t, kVectorBytes>> {
  using Storage = Vector<std::uint8_t, kVectorBytes>;
  using Accumulator = Storage;
  using Scale = double;
  HVDTUNE_INLINE static Scale scale(double factor) { return factor; }
  HVDTUNE_INLINE static Accumulator load(Storage v) { return v; }
  HVDTUNE_INLINE static Storage store(Accumulator v) { return v; }
  HVDTUNE_INLINE static Accumulator multiply(Accumulator v, Scale) { return v; }
};

// ---- the loops ------------------------------------------------------------------------------

/// The accumulator of `bytes` (at most one vector) of storage at `from`.
template <class Type>
HVDTUNE_INLINE typename Type::Accumulator load_bytes(const void* from, std::size_t offset,
                                                     std::size_t bytes) {
  typename Type::Storage raw{};
  __builtin_memcpy(&raw, static_cast<const char*>(from) + offset, bytes);
  return Type::load(raw);
}

template <class Type>
HVDTUNE_INLINE void store_bytes(void* to, std::size_t offset, std::size_t bytes,
                                typename Type::Accumulator value) {
  const typename Type::Storage raw = Type::store(value);
  __builtin_memcpy(static_cast<char*>(to) + offset, &raw, bytes);
}

/// Reduces `Unroll` vectors (of `bytes` each: a whole vector, except at the end of an array) at
/// byte `offset` of the arrays, keeping the accumulators in registers over all sources.
template <class Type, class Op, int Unroll>
HVDTUNE_INLINE void reduce_block(void* dst, const void* const* src, int sources, std::size_t offset,
                                 std::size_t bytes, bool scaled, typename Type::Scale factor) {
  typename Type::Accumulator acc[Unroll];
  for (int u = 0; u < Unroll; ++u) {
    acc[u] = load_bytes<Type>(src[0], offset + static_cast<std::size_t>(u) * bytes, bytes);
  }
  for (int k = 1; k < sources; ++k) {
    for (int u = 0; u < Unroll; ++u) {
      const auto next =
          load_bytes<Type>(src[k], offset + static_cast<std::size_t>(u) * bytes, bytes);
      acc[u] = Type::template apply<Op>(acc[u], next);
    }
  }
  if (scaled) {
    for (int u = 0; u < Unroll; ++u) acc[u] = Type::multiply(acc[u], factor);
  }
  for (int u = 0; u < Unroll; ++u) {
    store_bytes<Type>(dst, offset + static_cast<std::size_t>(u) * bytes, bytes, acc[u]);
  }
}

template <class Type, class Op, std::size_t ElementBytes>
void reduce(void* dst, const void* const* src, int sources, std::size_t count, double post) {
  constexpr std::size_t kVector = sizeof(typename Type::Storage);
  const bool scaled = post != 1.0;
  const typename Type::Scale factor = Type::scale(post);
  const std::size_t total = count * ElementBytes;
  std::size_t done = 0;
  for (; total - done >= kUnroll * kVector; done += kUnroll * kVector) {
    reduce_block<Type, Op, kUnroll>(dst, src, sources, done, kVector, scaled, factor);
  }
  for (; total - done >= kVector; done += kVector) {
    reduce_block<Type, Op, 1>(dst, src, sources, done, kVector, scaled, factor);
  }
  if (done < total) {
    reduce_block<Type, Op, 1>(dst, src, sources, done, total - done, scaled, factor);
  }
}

template <class Type, class Op, std::size_t ElementBytes>
void scale(void* dst, const void* src, std::size_t count, double factor) {
  reduce<Type, Op, ElementBytes>(dst, &src, 1, count, factor);
}

// ---- the table ------------------------------------------------------------------------------

template <class Type, std::size_t ElementBytes, class Sum = SumOp, class Min = MinOp,
          class Max = MaxOp, class Product = ProductOp>
constexpr void fill_row(KernelTable& table, DType dtype) {
  const auto row = static_cast<std::size_t>(dtype);
  table.reduce[row][static_cast<int>(KernelOp::kSum)] = reduce<Type, Sum, ElementBytes>;
  table.reduce[row][static_cast<int>(KernelOp::kMin)] = reduce<Type, Min, ElementBytes>;
  table.reduce[row][static_cast<int>(KernelOp::kMax)] = reduce<Type, Max, ElementBytes>;
  table.reduce[row][static_cast<int>(KernelOp::kProduct)] = reduce<Type, Product, ElementBytes>;
  table.scale[row] = scale<Type, Sum, ElementBytes>;
}

constexpr KernelTable make_table(const char* name) {
  KernelTable table{};
  table.name = name;
  fill_row<Integer<std::uint8_t>, 1>(table, DType::kUint8);
  fill_row<Integer<std::int8_t>, 1>(table, DType::kInt8);
  fill_row<Integer<std::uint16_t>, 2>(table, DType::kUint16);
  fill_row<Integer<std::int16_t>, 2>(table, DType::kInt16);
  fill_row<Integer<std::int32_t>, 4>(table, DType::kInt32);
  fill_row<Integer<std::int64_t>, 8>(table, DType::kInt64);
  fill_row<Float16, 2>(table, DType::kFloat16);
  fill_row<Floating<float>, 4>(table, DType::kFloat32);
  fill_row<Floating<double>, 8>(table, DType::kFloat64);
  fill_row<Bool, 1, OrOp, AndOp, OrOp, AndOp>(table, DType::kBool);
  fill_row<Bfloat16, 2>(table, DType::kBfloat16);
  return table;
}

}  // namespace
}  // namespace hvdtune
