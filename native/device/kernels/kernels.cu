// Kernels that copy many tensors into one buffer and back, in one launch, and multiply them by a
// number on the way; and kernels that reduce the data of several members. nvcc compiles this file
// when hvdtune is built, if there is one, and otherwise NVRTC when hvdtune runs; the tests also run
// this text on the host.

#include "device/kernels/kernel_work.h"

#if defined(__CUDACC__)
#define HVD_DEVICE __device__ __forceinline__
#define HVD_KERNEL extern "C" __global__ void __launch_bounds__(256, 4)
// Reducing kernels use more registers: with four blocks some of them would spill on sm_100.
#define HVD_REDUCING_KERNEL extern "C" __global__ void __launch_bounds__(256, 3)
#if __CUDACC_VER_MAJOR__ > 11 || (__CUDACC_VER_MAJOR__ == 11 && __CUDACC_VER_MINOR__ >= 7)
#define HVD_PARAMETER const __grid_constant__  // read in place, never copied for a thread
#else
#define HVD_PARAMETER const
#endif
#define HVD_PAUSE()
// The steps of a block's threads; each step begins after all threads have done the previous one.
#define HVD_MEETING_KERNEL(name, Kind)                                \
  HVD_REDUCING_KERNEL name(HVD_PARAMETER hvdtune::MeetingWork work) { \
    hvdtune::bring<Kind::Element>(work);                              \
    __syncthreads();                                                  \
    hvdtune::arrive(work);                                            \
    if (__syncthreads_or(!hvdtune::meet(work))) return;               \
    hvdtune::reduce<Kind>(work.reduce);                               \
    __syncthreads();                                                  \
    hvdtune::leave(work);                                             \
  }
#endif

namespace hvdtune {
namespace {

// Multiplication of elements of a type: equal to the CPU's ScaleKernel bit for bit, except for the
// payload of a NaN.

template <class T>
struct Floating {
  using Element = T;
  using Factor = T;
  using Wide = T;
  static HVD_DEVICE Wide widen(Element value) { return value; }
  static HVD_DEVICE Element narrow(Wide value, Factor factor) { return value * factor; }
  static HVD_DEVICE Element multiply(Element value, Factor factor) { return value * factor; }
};

using Float32 = Floating<float>;
using Float64 = Floating<double>;

struct Float16 {
  using Element = unsigned short;
  using Factor = float;
  using Wide = float;
  static HVD_DEVICE Wide widen(Element value) {
#if defined(__CUDACC__)
    float wide = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    return float16_to_float(value);
#endif
  }
  static HVD_DEVICE Element narrow(Wide value, Factor factor) {
    const float product = value * factor;
#if defined(__CUDACC__)
    Element narrow = 0;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(product));
    return narrow;
#else
    return float_to_float16(product);
#endif
  }
  static HVD_DEVICE Element multiply(Element value, Factor factor) {
    return narrow(widen(value), factor);
  }
};

struct Bfloat16 {
  using Element = unsigned short;
  using Factor = float;
  using Wide = float;
  union Bits {
    float value;
    unsigned bits;
  };
  static HVD_DEVICE Wide widen(Element value) {
    Bits wide;
    wide.bits = static_cast<unsigned>(value) << 16;
    return wide.value;
  }
  static HVD_DEVICE Element narrow(Wide value, Factor factor) {
    Bits wide;
    wide.value = value * factor;
    if ((wide.bits & 0x7fffffffu) > 0x7f800000u) {
      return static_cast<Element>((wide.bits >> 16) | 0x0040u);
    }
    return static_cast<Element>((wide.bits + 0x7fffu + ((wide.bits >> 16) & 1u)) >> 16);
  }
  static HVD_DEVICE Element multiply(Element value, Factor factor) {
    return narrow(widen(value), factor);
  }
};

/// The product in float64, truncated, or the nearest value that the type can hold; 0 for a NaN.
template <class T, T kLowest, T kHighest>
struct Integer {
  using Element = T;
  using Factor = double;
  using Wide = T;
  static HVD_DEVICE Wide widen(Element value) { return value; }
  static HVD_DEVICE Element narrow(Wide value, Factor factor) {
    return factor == 1.0 ? value : multiply(value, factor);
  }
  static HVD_DEVICE Element multiply(Element value, Factor factor) {
    const double product = static_cast<double>(value) * factor;
    // For 64 bits kHighest rounds up to 2^63, which is itself out of range: hence >=, not >.
    if (product >= static_cast<double>(kHighest)) return kHighest;
    if (product <= static_cast<double>(kLowest)) return kLowest;
    return product == product ? static_cast<Element>(product) : Element{0};
  }
};

using Uint8 = Integer<unsigned char, 0, 255>;
using Int8 = Integer<signed char, -128, 127>;
using Uint16 = Integer<unsigned short, 0, 65535>;
using Int16 = Integer<short, -32768, 32767>;
using Int32 = Integer<int, -2147483647 - 1, 2147483647>;
using Int64 = Integer<long long, -9223372036854775807LL - 1, 9223372036854775807LL>;

/// Unscaled bytes; U is the unit that is copied at once.
template <class U>
struct Bytes {
  using Element = U;
  using Factor = float;
  static HVD_DEVICE Element multiply(Element value, Factor) { return value; }
};

template <class Element>
union Block {
  uint4 vector;
  Element elements[16 / sizeof(Element)];
};

/// The part of a piece that a block copies: [from, to) of the piece's bytes, whole vectors.
/// `source` and `target` are the piece's addresses on both sides: tensor and buffer, or the
/// reverse.
struct Part {
  KernelSize source;
  KernelSize target;
  KernelSize from;
  KernelSize to;
};

template <class Kind>
HVD_DEVICE void move_vectors(const Part& part, typename Kind::Factor factor) {
  using Content = Block<typename Kind::Element>;
  const auto* source = reinterpret_cast<const uint4*>(part.source + part.from);
  auto* target = reinterpret_cast<uint4*>(part.target + part.from);
  const KernelSize vectors = (part.to - part.from) / 16;
  constexpr int kAtOnce = kTileBytes / 16 / kKernelThreads;
  constexpr int kLanes = 16 / sizeof(typename Kind::Element);
  Content held[kAtOnce];
  // All loads before all stores: memory has a long latency, but serves many loads at a time.
#pragma unroll
  for (int turn = 0; turn < kAtOnce; ++turn) {
    const KernelSize at = threadIdx.x + KernelSize{kKernelThreads} * turn;
    if (at < vectors) held[turn].vector = source[at];
  }
#pragma unroll
  for (int turn = 0; turn < kAtOnce; ++turn) {
    const KernelSize at = threadIdx.x + KernelSize{kKernelThreads} * turn;
    if (at >= vectors) continue;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      held[turn].elements[lane] = Kind::multiply(held[turn].elements[lane], factor);
    }
    target[at] = held[turn].vector;
  }
}

template <class Kind>
HVD_DEVICE void move_elements(const Part& part, typename Kind::Factor factor) {
  using Element = typename Kind::Element;
  const auto* source = reinterpret_cast<const Element*>(part.source + part.from);
  auto* target = reinterpret_cast<Element*>(part.target + part.from);
  const KernelSize count = (part.to - part.from) / sizeof(Element);
  for (KernelSize at = threadIdx.x; at < count; at += kKernelThreads) {
    target[at] = Kind::multiply(source[at], factor);
  }
}

/// For pieces that do not begin at a multiple of 16 bytes on both sides. Elements of scaled types
/// do begin at a multiple of their size; unscaled bytes are copied in the largest units that both
/// sides allow.
template <class Kind>
struct Unaligned {
  static HVD_DEVICE void move(const Part& part, typename Kind::Factor factor) {
    move_elements<Kind>(part, factor);
  }
};

template <>
struct Unaligned<Bytes<unsigned char>> {
  static HVD_DEVICE void move(const Part& part, float) {
    const KernelSize places = part.source | part.target | part.from | part.to;
    if (places % 8 == 0) {
      move_elements<Bytes<unsigned long long>>(part, 1);
    } else if (places % 4 == 0) {
      move_elements<Bytes<unsigned>>(part, 1);
    } else if (places % 2 == 0) {
      move_elements<Bytes<unsigned short>>(part, 1);
    } else {
      move_elements<Bytes<unsigned char>>(part, 1);
    }
  }
};

/// The last piece that begins at or before offset `place` of the packed buffer.
HVD_DEVICE int piece_at(const KernelWork& work, KernelSize place) {
  int first = 0;
  int behind = work.count;
  while (behind - first > 1) {
    const int middle = (first + behind) / 2;
    if (work.pieces[middle].begin <= place) {
      first = middle;
    } else {
      behind = middle;
    }
  }
  return first;
}

HVD_DEVICE KernelSize smaller(KernelSize a, KernelSize b) { return a < b ? a : b; }

/// One block's work: tiles of the packed buffer, whatever pieces they belong to. So blocks have
/// equal work, whether tensors are large or small.
template <class Kind>
HVD_DEVICE void move(const KernelWork& work, bool packs) {
  const auto factor = static_cast<typename Kind::Factor>(work.scale);
  KernelSize tile = work.begin + blockIdx.x * kTileBytes;
  for (; tile < work.end; tile += gridDim.x * kTileBytes) {
    const KernelSize tile_end = smaller(tile + kTileBytes, work.end);
    for (int index = piece_at(work, tile); index < work.count; ++index) {
      const KernelPiece& piece = work.pieces[index];
      if (piece.begin >= tile_end) break;
      const KernelSize from = tile > piece.begin ? tile - piece.begin : 0;
      const KernelSize whole = piece.bytes / 16 * 16;
      const KernelSize packed = work.packed + piece.begin;
      Part part{packs ? piece.at : packed, packs ? packed : piece.at, from,
                smaller(tile_end - piece.begin, whole)};
      const bool aligned = (part.source | part.target) % 16 == 0;
      if (part.from < part.to) {
        if (aligned) {
          move_vectors<Kind>(part, factor);
        } else {
          Unaligned<Kind>::move(part, factor);
        }
      }
      // The last bytes, less than a whole vector, and the padding after them.
      if (piece.bytes == whole || from > whole || tile_end - piece.begin <= whole) continue;
      part.from = whole;
      part.to = piece.bytes;
      Unaligned<Kind>::move(part, factor);
      if (packs) {
        auto* const padding = reinterpret_cast<unsigned char*>(packed + piece.bytes);
        if (threadIdx.x < whole + 16 - piece.bytes) padding[threadIdx.x] = 0;
      }
    }
  }
}

// ---- reducing the data of several members ------------------------------------------------------

/// Bytes 0 and 1: Sum and Max are OR, Product and Min are AND.
struct Bool {
  using Element = unsigned char;
  using Factor = double;
  using Wide = unsigned char;
  static HVD_DEVICE Wide widen(Element value) { return value; }
  static HVD_DEVICE Element narrow(Wide value, Factor) { return value; }
};

template <class Kind, ReduceStep kStep>
struct Combine {
  using Wide = typename Kind::Wide;
  static HVD_DEVICE Wide apply(Wide a, Wide b) {
    if constexpr (kStep == ReduceStep::kSum) return a + b;
    if constexpr (kStep == ReduceStep::kProduct) return a * b;
    // If either is a NaN, the result is that NaN.
    if (a != a) return a;
    if (b != b) return b;
    return (kStep == ReduceStep::kMin) == (b < a) ? b : a;
  }
};

template <class T, T kLowest, T kHighest, ReduceStep kStep>
struct Combine<Integer<T, kLowest, kHighest>, kStep> {
  static HVD_DEVICE T apply(T a, T b) {
    // Sums and products wrap around; unsigned 64-bit arithmetic has no undefined overflow.
    using Bits = unsigned long long;
    if constexpr (kStep == ReduceStep::kSum) return static_cast<T>(Bits(a) + Bits(b));
    if constexpr (kStep == ReduceStep::kProduct) return static_cast<T>(Bits(a) * Bits(b));
    return (kStep == ReduceStep::kMin) == (b < a) ? b : a;
  }
};

template <ReduceStep kStep>
struct Combine<Bool, kStep> {
  static HVD_DEVICE unsigned char apply(unsigned char a, unsigned char b) {
    constexpr bool kAny = kStep == ReduceStep::kSum || kStep == ReduceStep::kMax;
    return kAny ? a | b : a & b;
  }
};

/// Reduces 16 bytes of all sources, in their order. The last vector may be partly unused: sources
/// have room for all of it.
template <class Kind, ReduceStep kStep>
HVD_DEVICE void reduce_block(const ReduceWork& work, KernelSize at) {
  using Element = typename Kind::Element;
  constexpr int kLanes = 16 / sizeof(Element);
  typename Kind::Wide sum[kLanes];
  Block<Element> held;
  held.vector = *reinterpret_cast<const uint4*>(work.source[0] + at);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) sum[lane] = Kind::widen(held.elements[lane]);
  for (int source = 1; source < work.sources; ++source) {
    held.vector = *reinterpret_cast<const uint4*>(work.source[source] + at);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] = Combine<Kind, kStep>::apply(sum[lane], Kind::widen(held.elements[lane]));
    }
  }
  const auto factor = static_cast<typename Kind::Factor>(work.scale);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    held.elements[lane] = Kind::narrow(sum[lane], factor);
  }
  const KernelSize out = work.out + at;
  if (out % 16 == 0 && work.bytes - at >= 16) {
    *reinterpret_cast<uint4*>(out) = held.vector;
    return;
  }
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane * sizeof(Element) < work.bytes - at) {
      reinterpret_cast<Element*>(out)[lane] = held.elements[lane];
    }
  }
}

template <class Kind, ReduceStep kStep>
HVD_DEVICE void reduce_with(const ReduceWork& work) {
  const KernelSize together = KernelSize{gridDim.x} * kKernelThreads * 16;
  KernelSize at = (KernelSize{blockIdx.x} * kKernelThreads + threadIdx.x) * 16;
  for (; at < work.bytes; at += together) reduce_block<Kind, kStep>(work, at);
}

template <class Kind>
HVD_DEVICE void reduce(const ReduceWork& work) {
  switch (work.step) {
    case ReduceStep::kSum:
      return reduce_with<Kind, ReduceStep::kSum>(work);
    case ReduceStep::kMin:
      return reduce_with<Kind, ReduceStep::kMin>(work);
    case ReduceStep::kMax:
      return reduce_with<Kind, ReduceStep::kMax>(work);
    case ReduceStep::kProduct:
      return reduce_with<Kind, ReduceStep::kProduct>(work);
  }
}

// ---- reducing data that other GPUs supply meanwhile --------------------------------------------

/// A thread on any GPU that sees `value` also sees everything written before.
HVD_DEVICE void announce(KernelSize place, KernelSize value) {
#if !defined(__CUDACC__)
  __atomic_store_n(reinterpret_cast<KernelSize*>(place), value, __ATOMIC_RELEASE);
#elif __CUDA_ARCH__ >= 700
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(place), "l"(value) : "memory");
#else
  __threadfence_system();
  *reinterpret_cast<volatile KernelSize*>(place) = value;
#endif
}

HVD_DEVICE KernelSize look(KernelSize place) {
#if !defined(__CUDACC__)
  return __atomic_load_n(reinterpret_cast<const KernelSize*>(place), __ATOMIC_ACQUIRE);
#elif __CUDA_ARCH__ >= 700
  KernelSize value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(place) : "memory");
  return value;
#else
  const KernelSize value = *reinterpret_cast<volatile const KernelSize*>(place);
  __threadfence_system();
  return value;
#endif
}

/// The host's word that stops the waiting. Reading it is slow, so it is read rarely.
HVD_DEVICE bool is_over(const MeetingWork& work) {
#if defined(__CUDACC__)
  return *reinterpret_cast<volatile const unsigned*>(work.over) != 0;
#else
  return __atomic_load_n(reinterpret_cast<const unsigned*>(work.over), __ATOMIC_RELAXED) != 0;
#endif
}

HVD_DEVICE KernelSize arrived(const MeetingWork& work, int at, int who) {
  const auto* flags = reinterpret_cast<const MeetingFlags*>(work.flags[at]);
  return reinterpret_cast<KernelSize>(&flags->arrived[blockIdx.x][who]);
}

HVD_DEVICE KernelSize left(const MeetingWork& work, int at, int who) {
  const auto* flags = reinterpret_cast<const MeetingFlags*>(work.flags[at]);
  return reinterpret_cast<KernelSize>(&flags->left[blockIdx.x][who]);
}

/// Copies the data that reduce_with() reads in the same block into this member's source.
template <class Element>
HVD_DEVICE void bring(const MeetingWork& work) {
  constexpr int kLanes = 16 / sizeof(Element);
  const KernelSize own = work.reduce.source[work.self];
  const KernelSize together = KernelSize{gridDim.x} * kKernelThreads * 16;
  KernelSize at = (KernelSize{blockIdx.x} * kKernelThreads + threadIdx.x) * 16;
  for (; at < work.reduce.bytes; at += together) {
    if (work.in % 16 == 0 && work.reduce.bytes - at >= 16) {
      *reinterpret_cast<uint4*>(own + at) = *reinterpret_cast<const uint4*>(work.in + at);
      continue;
    }
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lane * sizeof(Element) >= work.reduce.bytes - at) break;
      reinterpret_cast<Element*>(own + at)[lane] =
          reinterpret_cast<const Element*>(work.in + at)[lane];
    }
  }
}

/// One thread per member tells that member that this block has arrived.
HVD_DEVICE void arrive(const MeetingWork& work) {
  const auto member = static_cast<int>(threadIdx.x);
  if (member < work.reduce.sources) announce(arrived(work, member, work.self), work.round);
}

/// … and waits until that member's block has. False if it waited in vain.
HVD_DEVICE bool meet(const MeetingWork& work) {
  constexpr unsigned kLooks = 1024;  // between two reads of the host's word
  const auto member = static_cast<int>(threadIdx.x);
  if (member >= work.reduce.sources) return true;
  const KernelSize place = arrived(work, work.self, member);
  for (unsigned looks = 1; look(place) < work.round; ++looks) {
    if (looks % kLooks == 0 && is_over(work)) return false;
    HVD_PAUSE();
  }
  return true;
}

/// … and tells it that this block has read that member's data.
HVD_DEVICE void leave(const MeetingWork& work) {
  const auto member = static_cast<int>(threadIdx.x);
  if (member < work.reduce.sources) announce(left(work, member, work.self), work.round);
}

}  // namespace
}  // namespace hvdtune

#define HVD_MEETING(name, Kind) HVD_MEETING_KERNEL(hvdtune_meet_##name, hvdtune::Kind)

HVD_MEETING(bool, Bool)
HVD_MEETING(uint8, Uint8)
HVD_MEETING(int8, Int8)
HVD_MEETING(uint16, Uint16)
HVD_MEETING(int16, Int16)
HVD_MEETING(int32, Int32)
HVD_MEETING(int64, Int64)
HVD_MEETING(float16, Float16)
HVD_MEETING(float32, Float32)
HVD_MEETING(float64, Float64)
HVD_MEETING(bfloat16, Bfloat16)

#define HVD_REDUCTION(name, Kind)                                                     \
  HVD_REDUCING_KERNEL hvdtune_reduce_##name(HVD_PARAMETER hvdtune::ReduceWork work) { \
    hvdtune::reduce<hvdtune::Kind>(work);                                             \
  }

HVD_REDUCTION(bool, Bool)
HVD_REDUCTION(uint8, Uint8)
HVD_REDUCTION(int8, Int8)
HVD_REDUCTION(uint16, Uint16)
HVD_REDUCTION(int16, Int16)
HVD_REDUCTION(int32, Int32)
HVD_REDUCTION(int64, Int64)
HVD_REDUCTION(float16, Float16)
HVD_REDUCTION(float32, Float32)
HVD_REDUCTION(float64, Float64)
HVD_REDUCTION(bfloat16, Bfloat16)

#define HVD_KERNELS(name, Kind)                                              \
  HVD_KERNEL hvdtune_pack_##name(HVD_PARAMETER hvdtune::KernelWork work) {   \
    hvdtune::move<hvdtune::Kind>(work, true);                                \
  }                                                                          \
  HVD_KERNEL hvdtune_unpack_##name(HVD_PARAMETER hvdtune::KernelWork work) { \
    hvdtune::move<hvdtune::Kind>(work, false);                               \
  }

HVD_KERNELS(copy, Bytes<unsigned char>)
HVD_KERNELS(uint8, Uint8)
HVD_KERNELS(int8, Int8)
HVD_KERNELS(uint16, Uint16)
HVD_KERNELS(int16, Int16)
HVD_KERNELS(int32, Int32)
HVD_KERNELS(int64, Int64)
HVD_KERNELS(float16, Float16)
HVD_KERNELS(float32, Float32)
HVD_KERNELS(float64, Float64)
HVD_KERNELS(bfloat16, Bfloat16)
