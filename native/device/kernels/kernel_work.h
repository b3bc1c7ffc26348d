#pragma once

// Parameters of kernel launches. C++ compilers, nvcc and NVRTC compile this file. NVRTC has no
// standard headers, so this file includes none.

namespace hvdtune {

using KernelSize = unsigned long long;

/// Pieces begin at multiples of this in a packed buffer, the padding of Horovod's batched copies.
inline constexpr KernelSize kPieceAlignment = 16;

inline constexpr int kKernelThreads = 256;
/// Bytes that a block copies at once: four vectors of 16 bytes per thread, enough to use the
/// memory's bandwidth.
inline constexpr KernelSize kTileBytes = KernelSize{kKernelThreads} * 4 * 16;
/// As many as in Horovod's batched copies; a kernel's parameters may take 4096 bytes at most.
inline constexpr int kPiecesPerLaunch = 160;

struct KernelPiece {
  KernelSize at;     ///< address of the tensor's bytes
  KernelSize begin;  ///< their offset in the packed buffer
  KernelSize bytes;
};

struct KernelWork {
  KernelSize packed;  ///< address of the packed buffer
  KernelSize begin;   ///< offset of the first piece
  KernelSize end;     ///< end of the last piece and its padding
  double scale;
  int count;
  KernelPiece pieces[kPiecesPerLaunch];  ///< ascending in the packed buffer
};

static_assert(sizeof(KernelWork) <= 4096);

inline constexpr int kMostKernelSources = 16;

/// Like KernelOp of the CPU's kernels.
enum class ReduceStep : int { kSum = 0, kMin = 1, kMax = 2, kProduct = 3 };

struct ReduceWork {
  KernelSize out;
  KernelSize bytes;
  double scale;  ///< of the result
  ReduceStep step;
  int sources;
  KernelSize source[kMostKernelSources];  ///< addresses; multiples of 16
};

/// The most blocks of a meeting. Their number depends only on its bytes, since block b of one
/// member waits for block b of every other.
inline constexpr int kMeetingBlocks = 32;

/// Round numbers, which only grow, for each block and member: the last round in which it `arrived`,
/// and that it `left`. They are in the memory of the member that reads them; the others write them.
struct MeetingFlags {
  KernelSize arrived[kMeetingBlocks][kMostKernelSources];
  KernelSize left[kMeetingBlocks][kMostKernelSources];
};

/// A reduction whose members' kernels exchange data while they run: each copies `in` into its own
/// source, tells the others, waits for them, and reduces all sources.
struct MeetingWork {
  ReduceWork reduce;  ///< each member's source
  KernelSize in;
  KernelSize flags[kMostKernelSources];  ///< address of each member's MeetingFlags
  KernelSize over;                       ///< address of an unsigned; not 0: stop waiting
  KernelSize round;                      ///< counted from 1
  int self;
};

}  // namespace hvdtune
