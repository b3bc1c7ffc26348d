#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "transport/arena/doorbell.h"
#include "transport/arena/ring.h"
#include "transport/arena/shared_work.h"
#include "transport/arena/slot_round.h"

namespace hvdtune {

inline constexpr int kMaxRanksPerHost = 64;
/// Ranks of a job. An arena also has room for the ranks of other hosts: this costs address space,
/// and on rank 0's host the memory of the rings that their announcements fill.
inline constexpr int kMaxRanks = 1024;
/// Process sets that can exist at once, the global one included.
inline constexpr int kMaxProcessSets = 128;
/// Slots that can exist at once; the cache capacity is limited to it.
inline constexpr std::uint32_t kMaxSlots = 1U << 16;
/// Chunks of a rank's window in the fusion buffer that are in use at a time;
/// collective/shm/shm_communicator.h explains why four.
inline constexpr int kWindowChunks = 4;
/// Size of the largest chunk, and of a rank's window, in bytes.
inline constexpr std::int64_t kMaxChunk = 4LL << 20;
/// Each rank's window has two rings of chunks: one for the allreduces, and one for the operations
/// that pass a chunk through one exchange only. The latter's first chunk has a header before its
/// data.
inline constexpr std::size_t kRingBytes = (kWindowChunks + 1) * kMaxChunk;
inline constexpr std::size_t kMaxExchangeChunk = 1 << 20;
inline constexpr std::size_t kMaxExchangeHeader = 16 << 10;
inline constexpr std::size_t kWindowBytes =
    kRingBytes + (kWindowChunks + 1) * (kMaxExchangeChunk + kMaxExchangeHeader);
/// Slots whose small tensors may be reduced without the coordinator, and the most bytes of such a
/// tensor.
inline constexpr std::uint32_t kDirectSlots = 1024;
inline constexpr std::size_t kDirectBytes = 4096;
/// Tensors that fit a cache line are stored side by side.
inline constexpr std::size_t kDirectLine = 64;
/// Size of a rank's part of the stage, where ranks publish larger tensors that bypass the
/// coordinator.
inline constexpr std::size_t kStageBytes = 8 << 20;
/// Longest text of an abort notice, its terminating zero included.
inline constexpr int kAbortTextBytes = 1024;

/// A barrier among the members of one communicator; see collective/shm/shm_barrier.h.
struct BarrierCell {
  alignas(64) std::atomic<std::uint64_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// The last generation that each member has arrived at: shows which members are missing.
  struct alignas(64) Arrival {
    std::atomic<std::uint32_t> generation{0};
  };
  Arrival arrivals[kMaxRanksPerHost];
};

/// The members of a communicator use this to measure how far apart their CPUs are; see
/// collective/shm/cache_distance.h.
struct DistanceCell {
  static constexpr std::size_t kProbeBytes = 4096;
  /// Number of the last probe that was written, and the result of the earlier ones.
  alignas(64) std::atomic<std::uint32_t> probe{0};
  std::atomic<std::uint32_t> far{0};
  /// Only for member 0: whether the others must read the pages, the result of the last measurement,
  /// and its time.
  bool probing = false;
  bool seemed_far = false;
  std::int64_t measured = 0;
  /// The last probe that each member has read.
  struct alignas(64) Reader {
    std::atomic<std::uint32_t> probe{0};
  };
  Reader readers[kMaxRanksPerHost];
  alignas(64) std::byte cached[kProbeBytes];
  std::byte streamed[kProbeBytes];
};

/// A slot's tensor that one rank has published on its stage; see engine/submission/direct_stage.h.
struct alignas(64) StagedTensor {
  /// Position, in bytes from the start of the rank's part; for even rounds, and for odd ones.
  /// Written before the rank arrives in the round.
  std::atomic<std::uint64_t> place[2];
  /// Length in bytes, for operations in which ranks may differ in it; also of data that is stored
  /// next to the slot.
  std::atomic<std::uint64_t> length[2];
  /// Position of the sum if the ranks share its work (engine/submission/shared_sum.h), or
  /// kReducedByEach; for even rounds, and for odd ones. The set's first member decides.
  static constexpr std::uint64_t kReducedByEach = UINT64_MAX;
  std::atomic<std::uint64_t> result[2];
  /// This rank no longer reads data staged for rounds before this one.
  std::atomic<std::uint32_t> finished;
};

/// The memory that all ranks of a host share: doorbells, message rings, barriers and the fusion
/// buffer. A memfd: it has no name in any file system and vanishes with its last process, however
/// that ends. Pages are committed when first touched.
class Arena {
 public:
  /// Creates a host's arena, with room for all `ranks` ranks of the job. Throws Error(kAborted) if
  /// the kernel refuses. `cpus`: number of CPUs that the host's ranks share; `local_ranks`: number
  /// of ranks on this host, 0 = all.
  static std::shared_ptr<Arena> create(int ranks, int cpus = INT32_MAX, int local_ranks = 0);

  /// Maps the arena that `fd` refers to; `fd` stays the caller's. Throws Error(kAborted).
  static std::shared_ptr<Arena> attach(int fd, int ranks);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// Ranks of the job.
  [[nodiscard]] int ranks() const { return ranks_; }
  /// Ranks on this host.
  [[nodiscard]] int local_ranks() const;
  /// CPUs that the ranks may use together, as the host's first rank has counted them: decisions
  /// based on this number must be the same on all ranks, whatever the affinity of each.
  [[nodiscard]] int cpus() const;
  /// More ranks than CPUs.
  [[nodiscard]] bool oversubscribed() const { return local_ranks() > cpus(); }

  Doorbell& doorbell(int rank);
  /// Wakes the bridge, which sends this host's news to other hosts; see transport/control/bridge.h.
  Doorbell& bridge_bell();
  /// Announcements of `rank` to the coordinator.
  MessageRing announcements(int rank);
  /// The coordinator's schedule, read by every rank.
  BroadcastRing schedule();
  /// The barrier of the communicator of process set `index`.
  BarrierCell& barrier(int index);
  DistanceCell& distance(int index);
  /// Resets the cells of process set `index`. Nobody may be using them.
  void reset_cells(int index);
  /// `rank`'s window of the fusion buffer: kWindowBytes bytes.
  std::byte* window(int rank);
  /// Who has arrived in the current round of a slot's tensor.
  SlotRound& slot_round(std::uint32_t slot);
  /// The data that `rank` contributes directly to a round of `slot` (below kDirectSlots): room for
  /// `bytes`, at most kDirectBytes, at a position that depends on whether they fit a cache line.
  /// Rounds use two buffers in turn: no rank enters the round after the next before all have read
  /// this one.
  std::byte* direct_data(std::uint32_t slot, std::uint32_t round, int rank, std::size_t bytes);
  /// The tensor that `rank` has staged for `slot` (below kDirectSlots).
  StagedTensor& staged(std::uint32_t slot, int rank);
  /// The work on staged tensors of `slot` that the members share.
  SharedWork& shared_work(std::uint32_t slot);
  /// `rank`'s part of the stage: kStageBytes bytes.
  std::byte* stage(int rank);
  /// Set while all operations must be seen by the coordinator: no operation bypasses it then.
  std::atomic<std::uint32_t>& watched();
  /// How often rank 0 has checked for stalls; and the rank that reports that rank 0 has stopped
  /// checking, as rank + 1.
  std::atomic<std::uint32_t>& stall_checks();
  std::atomic<std::uint32_t>& silence_reporter();
  /// Set while the coordinator holds back ready tensors to fuse them with others.
  std::atomic<std::uint32_t>& collecting();

  /// When `rank` was last in an operation that bypassed the coordinator, in a process set without
  /// some ranks; 0 = never. In time of the rank's own clock.
  std::atomic<std::int64_t>& apart(int rank);
  /// When `rank` last showed that it is running while it waits for other hosts, in the middle of an
  /// operation that other ranks of this host wait for; 0 = it is not waiting for hosts.
  std::atomic<std::int64_t>& seen_waiting(int rank);
  /// Set once rank 0 has decided whether the job is recorded from its start, and ordered it.
  std::atomic<std::uint32_t>& recording_decided();
  /// Ranks that have a recording's file open.
  std::atomic<std::int32_t>& recording();
  /// Set by the first rank that fails to write its file: one warning is enough.
  std::atomic<std::uint32_t>& recording_failed();

  /// How many ranks have joined. While this is not 0, no rank can know which one completes a round,
  /// so every announcement must wake the coordinator.
  std::atomic<std::uint32_t>& joined();

  /// Set before the last schedule entry: from then on processes may end.
  std::atomic<std::uint32_t>& ended();
  /// Position after the last schedule entry; 0 until that is published.
  std::atomic<std::uint64_t>& end_position();

  /// Ends the job for all ranks on the host: the first caller's text is kept, all sleepers wake,
  /// and every wait throws the text from now on. Callable from any thread at any time; never
  /// blocks.
  void abort(const std::string& text) noexcept;
  [[nodiscard]] bool aborted() const;
  /// The notice of abort(), or kOk.
  [[nodiscard]] Status abort_status() const;

 private:
  struct Header;
  Arena(int fd, int ranks, bool owner);

  int fd_ = -1;
  int ranks_ = 0;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvdtune
