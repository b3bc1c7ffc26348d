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
/// Of a job. An arena has room for other hosts' ranks, too: address space, and on rank 0's host the
/// memory of the rings that their announcements fill.
inline constexpr int kMaxRanks = 1024;
/// Process sets that can exist at once, the global one included.
inline constexpr int kMaxProcessSets = 128;
/// Slots that can exist at once; the cache capacity is limited to it.
inline constexpr std::uint32_t kMaxSlots = 1U << 16;
/// Chunks of a rank's window in the fusion buffer; alive at a time; why four:
/// collective/shm/shm_communicator.h.
inline constexpr int kWindowChunks = 4;
/// Largest chunk, and a rank's window, in bytes.
inline constexpr std::int64_t kMaxChunk = 4LL << 20;
/// Two rings of chunks in each rank's window: of the allreduces, and of the operations that pass a
/// chunk through one exchange only, whose first chunk has a header before its data.
inline constexpr std::size_t kRingBytes = (kWindowChunks + 1) * kMaxChunk;
inline constexpr std::size_t kMaxExchangeChunk = 1 << 20;
inline constexpr std::size_t kMaxExchangeHeader = 16 << 10;
inline constexpr std::size_t kWindowBytes =
    kRingBytes + (kWindowChunks + 1) * (kMaxExchangeChunk + kMaxExchangeHeader);
/// Slots whose small tensors may be reduced without the coordinator, and how small they must be.
inline constexpr std::uint32_t kDirectSlots = 1024;
inline constexpr std::size_t kDirectBytes = 4096;
/// Those that fit a cache line lie side by side.
inline constexpr std::size_t kDirectLine = 64;
/// A rank's part of the stage, where larger tensors are published that go past the coordinator.
inline constexpr std::size_t kStageBytes = 8 << 20;
/// Longest text of an abort notice, its terminating zero included.
inline constexpr int kAbortTextBytes = 1024;

/// A barrier among the members of one communicator; see collective/shm/shm_barrier.h.
struct BarrierCell {
  alignas(64) std::atomic<std::uint64_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// The last generation that each member has arrived at: tells who is missing.
  struct alignas(64) Arrival {
    std::atomic<std::uint32_t> generation{0};
  };
  Arrival arrivals[kMaxRanksPerHost];
};

/// What the members of a communicator need to find out how far apart their CPUs are; see
/// collective/shm/cache_distance.h.
struct DistanceCell {
  static constexpr std::size_t kProbeBytes = 4096;
  /// Number of the last probe that was written, and what the ones before have shown.
  alignas(64) std::atomic<std::uint32_t> probe{0};
  std::atomic<std::uint32_t> far{0};
  /// Member 0's alone: whether the others are to read the pages, what the last measurement has
  /// shown, and when it was.
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

/// What one rank has published of a slot's tensor on its stage; see
/// engine/submission/direct_stage.h.
struct alignas(64) StagedTensor {
  /// Where, in bytes from the start of the rank's part; of even rounds, and of odd ones. Written
  /// before the rank arrives in the round.
  std::atomic<std::uint64_t> place[2];
  /// How many bytes, where ranks may differ in that; also of what lies next to the slot.
  std::atomic<std::uint64_t> length[2];
  /// Where the sum goes, if its work is shared (engine/submission/shared_sum.h), or kReducedByEach;
  /// of even rounds, and of odd ones. The set's first member decides.
  static constexpr std::uint64_t kReducedByEach = UINT64_MAX;
  std::atomic<std::uint64_t> result[2];
  /// This rank does not read what was staged for rounds before this one any more.
  std::atomic<std::uint32_t> finished;
};

/// The memory that all ranks of a host share: doorbells, message rings, barriers and the fusion
/// buffer. A memfd: it has no name in any file system and vanishes with its last process, however
/// that ends. Pages are committed when first touched.
class Arena {
 public:
  /// Creates a host's arena, with room for all `ranks` ranks of the job. Throws Error(kAborted)
  /// when the kernel refuses.
  /// `cpus`: how many CPUs the host's ranks share; `local_ranks`: how many they are, 0 = all.
  static std::shared_ptr<Arena> create(int ranks, int cpus = INT32_MAX, int local_ranks = 0);

  /// Maps the arena behind `fd`, which stays the caller's. Throws Error(kAborted).
  static std::shared_ptr<Arena> attach(int fd, int ranks);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// Of the job.
  [[nodiscard]] int ranks() const { return ranks_; }
  /// Those on this host.
  [[nodiscard]] int local_ranks() const;
  /// CPUs that the ranks may use together. Rank 0's finding: what depends on it must be the same on
  /// all ranks, whatever each one's own affinity.
  [[nodiscard]] int cpus() const;
  /// More ranks than CPUs.
  [[nodiscard]] bool oversubscribed() const { return local_ranks() > cpus(); }

  Doorbell& doorbell(int rank);
  /// Wakes what carries this host's news to other hosts; see transport/control/bridge.h.
  Doorbell& bridge_bell();
  /// Announcements of `rank` to the coordinator.
  MessageRing announcements(int rank);
  /// The coordinator's schedule, read by every rank.
  BroadcastRing schedule();
  /// Of the communicator of process set `index`.
  BarrierCell& barrier(int index);
  DistanceCell& distance(int index);
  /// Makes both as new. Nobody may be using them.
  void reset_cells(int index);
  /// `rank`'s window of the fusion buffer: kWindowBytes bytes.
  std::byte* window(int rank);
  /// Who has arrived in the current round of a slot's tensor.
  SlotRound& slot_round(std::uint32_t slot);
  /// What `rank` contributes directly to a round of `slot` (below kDirectSlots): room for
  /// `bytes`, at most kDirectBytes, at a place that depends on whether they fit a line. Two in
  /// turn: nobody is in the round after the next before all have read this one.
  std::byte* direct_data(std::uint32_t slot, std::uint32_t round, int rank, std::size_t bytes);
  /// What `rank` has staged for `slot` (below kDirectSlots).
  StagedTensor& staged(std::uint32_t slot, int rank);
  /// The work on staged tensors of `slot` that its members share.
  SharedWork& shared_work(std::uint32_t slot);
  /// `rank`'s part of the stage: kStageBytes bytes.
  std::byte* stage(int rank);
  /// Set while somebody watches all traffic through the coordinator: nothing goes past it then.
  std::atomic<std::uint32_t>& watched();
  /// How often rank 0 has looked for stalls; and who reports that it does so no longer, as rank
  /// + 1.
  std::atomic<std::uint32_t>& stall_checks();
  std::atomic<std::uint32_t>& silence_reporter();
  /// Set while the coordinator holds back ready tensors for company.
  std::atomic<std::uint32_t>& collecting();

  /// When `rank` was last in an operation of a process set that not all ranks are in, and that went
  /// past the coordinator; 0 = never. Its own clock's.
  std::atomic<std::int64_t>& apart(int rank);
  /// When `rank` has last shown that it goes on while it waits for other hosts, in the middle of an
  /// operation for which others of this host wait; 0 = it does not wait for hosts.
  std::atomic<std::int64_t>& seen_waiting(int rank);
  /// Set once rank 0 has decided whether the job is recorded from its start, and ordered it.
  std::atomic<std::uint32_t>& recording_decided();
  /// Ranks that have a recording's file open.
  std::atomic<std::int32_t>& recording();
  /// Set by the first rank that could not go on writing its file: one warning is enough.
  std::atomic<std::uint32_t>& recording_failed();

  /// How many ranks have joined: while there are any, nobody knows who completes a round, and the
  /// coordinator is to be woken by every announcement.
  std::atomic<std::uint32_t>& joined();

  /// Set before the last schedule entry: from then on processes may end.
  std::atomic<std::uint32_t>& ended();
  /// Behind the last schedule entry; 0 until that is published.
  std::atomic<std::uint64_t>& end_position();

  /// Ends the job for everybody on the host: the first caller's text stays, all sleepers wake,
  /// and every wait throws it from now on. Callable from any thread at any time; never blocks.
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
