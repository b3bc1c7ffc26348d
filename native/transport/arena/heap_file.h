#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/arena/arena.h"

namespace hvdtune {

/// Progress of a process set's current reduction of registered memory; see
/// collective/shm/shm_registered.h.
struct WorkCell {
  /// Upper half: number of the reduction. Lower half: the next block that nobody has taken.
  alignas(64) std::atomic<std::uint64_t> claim{0};
  /// Blocks of the current reduction that are finished.
  alignas(64) std::atomic<std::uint32_t> finished{0};
  /// Counts the reductions that have ended; sleepers wait on it.
  alignas(64) std::atomic<std::uint32_t> ended{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// By member: 2 × number + 1 while it works on a reduction, + 2 once it has done its part.
  struct alignas(64) Progress {
    std::atomic<std::uint32_t> value{0};
  };
  Progress members[kMaxRanksPerHost];
};

/// Shared memory for the tensors of a host's ranks: a region for every rank, of which the others
/// map the parts that they need. It is separate from the arena because it exists as long as any
/// tensor in it.
///
/// A memfd like the arena. Every rank's region is as large as all of the machine's memory, but
/// consists of holes: only allocated and touched parts take memory or address space. The file
/// begins with the work cells and, for every rank, a table of the positions of its tensors.
class HeapFile {
 public:
  /// Null if the kernel refuses (for example because of a limit on the size of files): tensors then
  /// stay in private memory, and ranks copy them.
  static std::shared_ptr<HeapFile> create(int ranks);
  /// Maps the part of the file `fd` before the regions; `fd` stays the caller's. Throws
  /// Error(kAborted).
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

  /// The work cell of process set `number`.
  WorkCell& work_cell(int number);
  /// Resets a cell. Nobody may be using it.
  void reset_work_cell(int number);

  /// Position of the tensor of `slot` in `rank`'s region, or, for a group, of the list of its
  /// tensors' positions. `rank` writes it before it announces the tensor as registered; it does not
  /// change until the reduction has ended.
  std::atomic<std::uint64_t>& place(int rank, std::uint32_t slot);

 private:
  HeapFile(int fd, int ranks, std::uint64_t region_bytes, std::byte* front);

  int fd_;
  int ranks_;
  std::uint64_t region_bytes_;
  std::byte* front_;
};

/// Allocations begin at multiples of this: the size of a huge page, if the system has them.
inline constexpr std::uint64_t kHeapGrain = 2 << 20;

}  // namespace hvdtune
