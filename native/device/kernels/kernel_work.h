#pragma once

// What a launch is told. Compiled by C++ compilers and by CUDA's, NVRTC among them, which has no
// standard headers: this file includes none.

namespace hvdtune {

using KernelSize = unsigned long long;

/// Where pieces begin in a packed buffer: at multiples of this, as Horovod's batched copies pad.
inline constexpr KernelSize kPieceAlignment = 16;

inline constexpr int kKernelThreads = 256;
/// What a block copies at once: four vectors of 16 bytes a thread, which keeps enough of the
/// memory's bandwidth busy.
inline constexpr KernelSize kTileBytes = KernelSize{kKernelThreads} * 4 * 16;
/// As many as Horovod's batched copies have; all parameters of a kernel have 4096 bytes at most.
inline constexpr int kPiecesPerLaunch = 160;

struct KernelPiece {
  KernelSize at;     ///< address of the tensor's bytes
  KernelSize begin;  ///< … and their place in the packed buffer
  KernelSize bytes;
};

struct KernelWork {
  KernelSize packed;  ///< address of the packed buffer
  KernelSize begin;   ///< place of the first piece
  KernelSize end;     ///< behind the last piece and its padding
  double scale;
  int count;
  KernelPiece pieces[kPiecesPerLaunch];  ///< ascending in the packed buffer
};

static_assert(sizeof(KernelWork) <= 4096);

inline constexpr int kMostKernelSources = 16;

/// As KernelOp of the CPU's kernels.
enum class ReduceStep : int { kSum = 0, kMin = 1, kMax = 2, kProduct = 3 };

struct ReduceWork {
  KernelSize out;
  KernelSize bytes;
  double scale;  ///< of the result
  ReduceStep step;
  int sources;
  KernelSize source[kMostKernelSources];  ///< addresses; multiples of 16
};

/// Blocks of a meeting at most; how many they are depends on its bytes alone, as block b of one
/// member waits for block b of every other.
inline constexpr int kMeetingBlocks = 32;

/// A number that only grows, for each block and member: `arrived` in the round of this number, and
/// `left` it. They lie in the memory of the member that looks at them; the others write them.
struct MeetingFlags {
  KernelSize arrived[kMeetingBlocks][kMostKernelSources];
  KernelSize left[kMeetingBlocks][kMostKernelSources];
};

/// A reduction of what the members' kernels bring while they run: each copies `in` into its own
/// source, tells the others, waits for them, and reduces all sources.
struct MeetingWork {
  ReduceWork reduce;  ///< each member's source
  KernelSize in;
  KernelSize flags[kMostKernelSources];  ///< address of each member's MeetingFlags
  KernelSize over;                       ///< address of an unsigned; not 0: nobody waits any more
  KernelSize round;                      ///< counted from 1
  int self;
};

}  // namespace hvdtune
