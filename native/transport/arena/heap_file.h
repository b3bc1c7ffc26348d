#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/arena/arena.h"

namespace hvdtune {

/// How far a process set is in its current reduction of registered memory; see
/// collective/shm/shm_registered.h.
struct WorkCell {
  /// Number of the reduction in the upper half, the next block that nobody has taken in the lower.
  alignas(64) std::atomic<std::uint64_t> claim{0};
  /// Blocks of the current reduction that are finished.
  alignas(64) std::atomic<std::uint32_t> finished{0};
  /// Counts reductions that have ended: what sleepers watch.
  alignas(64) std::atomic<std::uint32_t> ended{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// By member: 2 × number + 1 while it works on a reduction, + 2 once it has done its part.
  struct alignas(64) Progress {
    std::atomic<std::uint32_t> value{0};
  };
  Progress members[kMaxRanksPerHost];
};

/// Memory of a host's ranks that tensors live in: a region for every rank, which the others map
/// where they need it. Apart from the arena, because it lives as long as any tensor in it.
///
/// A memfd like the arena. The file is as large as all of the machine's memory for every rank, but
/// consists of holes: only what is allocated and touched takes memory or address space. In front of
/// the regions lie the work cells, and for every rank a table of where its tensors are.
class HeapFile {
 public:
  /// Null where the kernel refuses (a limit on the size of files, say): tensors then stay where
  /// they are, and are copied.
  static std::shared_ptr<HeapFile> create(int ranks);
  /// Maps the front of the file behind `fd`, which stays the caller's. Throws Error(kAborted).
  static std::shared_ptr<HeapFile> attach(int fd, int ranks);

  ~HeapFile();
  HeapFile(const HeapFile&) = delete;
  HeapFile& operator=(const HeapFile&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  /// Bytes of one rank's region; a multiple of kHeapGrain.
  [[nodiscard]] std::uint64_t region_bytes() const { return region_bytes_; }
  /// Where `rank`'s region begins in the file.
  [[nodiscard]] std::uint64_t region_start(int rank) const;

  /// Of process set `number`.
  WorkCell& work_cell(int number);
  /// Makes a cell as new. Nobody may be using it.
  void reset_work_cell(int number);

  /// Where the tensor of `slot` is in `rank`'s region, or, for a group, where the list of its
  /// tensors' places is. Written by `rank` before it announces the tensor as registered; stays as
  /// it is until the reduction has ended.
  std::atomic<std::uint64_t>& place(int rank, std::uint32_t slot);

 private:
  HeapFile(int fd, int ranks, std::uint64_t region_bytes, std::byte* front);

  int fd_;
  int ranks_;
  std::uint64_t region_bytes_;
  std::byte* front_;
};

/// Allocations begin at multiples of it: a huge page, where the system gives those.
inline constexpr std::uint64_t kHeapGrain = 2 << 20;

}  // namespace hvdtune
