#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collective/communicator.h"
#include "collective/kernels/helper_pool.h"
#include "collective/kernels/reduction.h"
#include "collective/shm/cache_distance.h"
#include "collective/shm/shm_barrier.h"
#include "collective/shm/shm_window.h"

namespace hvdtune {

/// Collectives among ranks of one host, through the arena's fusion buffer.
///
/// A message streams through one window per rank, of which kWindowChunks chunks are in use at a
/// time. In step s a member packs chunk s into its own window, reduces its share of chunk s-1
/// straight from the peers' windows into the output and publishes it from there, and unpacks chunk
/// s-2 from the windows of the others, who reduced it; one split barrier per step tells the peers
/// that all three are done. A chunk stays in cache between its three uses, however long the
/// message. A member does not pack data that only it would read: its own share is reduced from the
/// tensors themselves.
///
/// Why four chunks: chunk s may be packed as soon as all members have *arrived* at step s-2, that
/// is, have unpacked chunk s-4. With four, packing runs ahead of the barrier by a whole step.
class ShmCommunicator final : public Communicator {
 public:
  /// `members`: ranks on the host, ascending; `index`: this rank's place among them. `cell` must be
  /// the same on all members and used by no other communicator at the time. `helpers`: this rank's,
  /// if it has any; ranks may have different numbers of helpers.
  ShmCommunicator(std::shared_ptr<Arena> arena, std::vector<int> members, int index, int cell,
                  Patience patience, std::shared_ptr<HelperPool> helpers = nullptr);

  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] int index() const override { return index_; }
  [[nodiscard]] const char* activity(OpKind kind) const override;

  PhaseTimes allreduce(const AllreduceJob& job) override;
  PhaseTimes broadcast(const BroadcastJob& job) override;
  PhaseTimes allgather(const AllgatherJob& job) override;
  PhaseTimes alltoall(const AlltoallJob& job) override;
  PhaseTimes reducescatter(const ReducescatterJob& job) override;
  PhaseTimes sendrecv(const SendrecvJob& job) override;
  void barrier() override;

  void tune(const Tuning& tuning) override;

  /// Says whether other communicators also use this rank's window. If so, every operation ends with
  /// a barrier, so that the next communicator overwrites nothing that a peer still reads. The same
  /// on all members.
  void set_window_shared(bool shared) { window_shared_ = shared; }
  void share_buffers() override;

  void time_waits(bool timed) override { barrier_.time_waits(timed); }
  [[nodiscard]] Nanos waited() const override { return barrier_.waited(); }

  void report_absence(Nanos patience, AbsenceReport report) override;

 private:
  class StreamedAllreduce;

  PhaseTimes allreduce_one_shot(const AllreduceJob& job);
  PhaseTimes allreduce_streamed(const AllreduceJob& job);

  /// The operations without a second exchange: shm_exchange.cc.
  template <typename Pack, typename Count, typename Consume>
  PhaseTimes stream(std::size_t header, Pack&& pack_chunk, Count&& count, Consume&& consume);
  [[nodiscard]] std::size_t broadcast_chunk(std::size_t total) const;
  [[nodiscard]] CopyKind result_copies(std::size_t bytes) const;
  [[nodiscard]] std::vector<std::int64_t> published_lengths(const Lengths& lengths,
                                                            std::uint64_t chunk) const;
  [[nodiscard]] std::byte* exchange_window(std::size_t member, std::uint64_t chunk) const;

  [[nodiscard]] std::byte* window(std::size_t member, std::uint64_t chunk) const;
  [[nodiscard]] std::size_t others() const { return members_.size() - 1; }
  void end_operation();

  /// Copy `piece`, with the helpers; `message`: see HelperPool::share.
  void publish(std::size_t message, const SegmentList& data, const Part& piece, std::byte* to,
               CopyKind writing) const;
  void fetch(std::size_t message, const SegmentList& out, const Part& piece, const std::byte* from,
             CopyKind copies) const;
  void keep(std::size_t message, const SegmentList& in, const SegmentList& out, const Part& piece,
            CopyKind copies) const;

  std::shared_ptr<Arena> arena_;
  std::vector<int> members_;
  int index_;
  ShmBarrier barrier_;
  CacheDistance distance_;
  std::shared_ptr<HelperPool> helpers_;
  bool crowded_;  // more ranks than CPUs
  std::size_t chunk_bytes_ = 0;
  std::size_t exchange_chunk_ = 0;
  std::size_t one_shot_limit_ = 0;
  bool window_shared_ = false;
  ShmWindow window_;           // of allreduces
  ShmWindow exchange_window_;  // of everything else
};

}  // namespace hvdtune
