#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/threads/patience.h"
#include "collective/communicator.h"
#include "collective/kernels/helper_pool.h"
#include "collective/shm/cache_distance.h"
#include "transport/arena/heap_file.h"
#include "transport/arena/peer_heaps.h"

namespace hvdtune {

/// A tensor that every member has in its own region of the heap file.
struct RegisteredTensor {
  std::uint32_t slot;   ///< under which every member has published its position
  std::uint32_t index;  ///< in its group
  std::uint32_t group;  ///< tensors of the group; 1 if it is in no group
  std::byte* data;      ///< this member's
  std::size_t bytes;
};

struct RegisteredJob {
  const std::vector<RegisteredTensor>& tensors;  ///< the same on all members except `data`
  DType dtype;
  ReduceOp op;  ///< not kAverage: the caller folds 1/n into `postscale`
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Allreduce in place of tensors that are in shared memory: nothing is packed or unpacked.
///
/// The tensors, end to end, are cut into blocks. Any running member takes the next block, reduces
/// it from all members' copies, in member order, and writes the result into all of them. The
/// reduction ends when all blocks are finished; a member that arrives later finds everything done.
/// No member waits for another to begin: a tensor is reduced only after all members have announced
/// it and so handed over their copies. So if members outnumber the CPUs, they need not all run, and
/// a message of any length needs only one wait.
///
/// All members reduce the same tensors in the same order. One thread at a time.
class ShmRegistered {
 public:
  /// `members`: ranks on the host, ascending; `index`: this rank's place among them; `number`: of
  /// the process set, whose work cell must have been reset; `helpers`: this rank's, if it has any.
  ShmRegistered(std::shared_ptr<Arena> arena, std::shared_ptr<HeapFile> file,
                std::vector<int> members, int index, int number, Patience patience,
                std::shared_ptr<HelperPool> helpers = nullptr);

  /// Blocks until all tensors are reduced on all members. Throws Error(kAborted) if the job is
  /// aborted, or if a member's memory cannot be mapped; the tensors are undefined then. Results
  /// have the same bits as those of any Communicator.
  PhaseTimes allreduce(const RegisteredJob& job);

  /// Sets how to write data that other members read; sizes are ignored here.
  void tune(const Tuning& tuning) { distance_.choose(tuning.writing); }

  /// As in Communicator.
  void time_waits(bool timed) {
    timed_ = timed;
    waited_ = 0;
  }
  [[nodiscard]] Nanos waited() const { return waited_; }

  /// Like Communicator::report_absence: a member is missing if it has begun a block and does not
  /// finish it.
  void report_absence(Nanos limit, AbsenceReport report);

 private:
  /// Bytes that are contiguous on every member.
  struct Run {
    std::size_t begin;  ///< in all tensors, end to end
    std::size_t bytes;
  };

  [[nodiscard]] std::optional<std::uint32_t> take_block(std::uint32_t blocks);
  void finish_blocks(std::uint32_t count, std::uint32_t blocks);
  void lay_out(const RegisteredJob& job);
  [[nodiscard]] std::uint64_t place_of(const RegisteredTensor& tensor, std::size_t member);
  void reduce_range(const RegisteredJob& job, std::size_t begin, std::size_t end) const;
  void reduce_run(const RegisteredJob& job, std::byte* const* copies, std::size_t bytes) const;
  void reduce_tile(const RegisteredJob& job, std::byte* const* copies, std::size_t bytes) const;
  void reduce_scaled(const RegisteredJob& job, std::byte* const* copies, std::size_t bytes) const;
  [[nodiscard]] bool over() const;
  void wait_for_others();
  void wait_until_over();
  void report_missing(Nanos waited) const;

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<HeapFile> file_;
  PeerHeaps peers_;
  std::vector<int> members_;
  std::size_t index_;
  WorkCell& cell_;
  CacheDistance distance_;
  Patience patience_;
  std::shared_ptr<HelperPool> helpers_;
  Nanos absence_limit_ = kForever;
  AbsenceReport report_;
  CopyKind writing_ = CopyKind::kCached;  // in the current reduction
  bool timed_ = false;
  Nanos waited_ = 0;
  std::uint32_t number_ = 0;  // of the current reduction; the same on all members

  // Layout of the current reduction; kept for its memory.
  std::vector<std::size_t> order_;
  std::vector<std::uint64_t> places_;  // [tensor][member]
  std::vector<Run> runs_;
  std::vector<std::byte*> copies_;  // [run][member]: its address
};

}  // namespace hvdtune
