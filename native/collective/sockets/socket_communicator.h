#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "collective/communicator.h"
#include "collective/sockets/socket_streams.h"
#include "transport/sockets/mesh.h"

namespace hvdtune {

/// Collectives among ranks that share no memory, over the TCP connections of a mesh.
///
/// Every operation is a pairwise exchange: a member sends data directly to each member that needs
/// it, to all of them at once. An allreduce of n members cuts the message into n shares; member p
/// gets share p from all others, reduces it chunk by chunk while more arrives, and sends the sum to
/// all others. Short messages skip the second half: every member sends all its data to all others.
/// A broadcast sends each member a different share, which that member passes on while it arrives.
///
/// Why not a ring, or recursive halving: they send exactly as many bytes, but in n - 1 or log n
/// successive steps instead of two, and add in an order that depends on the position of an element
/// in the message or on the message's length. It depends on timing which tensors share a message,
/// so the same training could give other bits in every run. Here sums are taken in the order of
/// members (float16 and bfloat16 in float32, rounded once), as in shared memory: the results equal
/// those of ShmCommunicator, bit for bit. The price is a connection between any two members, which
/// exists anyway.
class SocketCommunicator final : public Communicator {
 public:
  /// `members`: ranks of the mesh, in the order in which sums are taken, the same on all members;
  /// `index`: this rank's place among them; `number`: the same on all members, and different
  /// between communicators that exist at once. If communicators have members in common, their
  /// collectives happen in the same order on all of these members.
  SocketCommunicator(std::shared_ptr<Mesh> mesh, std::vector<int> members, int index, int number,
                     Patience patience);

  [[nodiscard]] int size() const override { return static_cast<int>(streams_.members()); }
  [[nodiscard]] int index() const override { return static_cast<int>(streams_.self()); }
  [[nodiscard]] const char* activity(OpKind kind) const override;

  PhaseTimes allreduce(const AllreduceJob& job) override;
  PhaseTimes broadcast(const BroadcastJob& job) override;
  PhaseTimes allgather(const AllgatherJob& job) override;
  PhaseTimes alltoall(const AlltoallJob& job) override;
  PhaseTimes reducescatter(const ReducescatterJob& job) override;
  PhaseTimes sendrecv(const SendrecvJob& job) override;
  void barrier() override;

  void tune(const Tuning& tuning) override;

  void time_waits(bool timed) override { streams_.time_waits(timed); }
  [[nodiscard]] Nanos waited() const override { return streams_.waited(); }
  void show_waiting(std::atomic<Nanos>& seen) override { streams_.show_waiting(seen); }

  void report_absence(Nanos patience, AbsenceReport report) override;

 private:
  class Reduction;

  [[nodiscard]] std::size_t others() const { return streams_.members() - 1; }
  /// Calls visit(member) for every other member, beginning after this one, so that members begin
  /// with different ones.
  template <typename Visit>
  void for_others(Visit&& visit) const {
    for (std::size_t turn = 1; turn < streams_.members(); ++turn) {
      visit((streams_.self() + turn) % streams_.members());
    }
  }

  // socket_reduce.cc
  void allreduce_one_shot(const AllreduceJob& job, const SegmentList& in, PhaseTimes& times);
  void allreduce_in_shares(const AllreduceJob& job, const SegmentList& in, PhaseTimes& times);
  std::vector<SegmentList> stage(const std::vector<SegmentList>& lists, DType dtype,
                                 double prescale);

  PhaseTimes broadcast_whole(const BroadcastJob& job);
  PhaseTimes broadcast_in_shares(const BroadcastJob& job);
  void pass_on(const BroadcastJob& job, const SegmentList& share);
  template <typename Job, typename Outgoing>
  PhaseTimes exchange_all(OpKind kind, const Job& job, Outgoing&& outgoing);

  SocketStreams streams_;
  std::vector<std::byte> incoming_;  // received data, until it is reduced
  std::vector<std::byte> staged_;    // data to send, if not the tensors themselves
  std::size_t chunk_ = 0;            // received from a member and reduced at once
  std::size_t one_shot_limit_ = 0;   // of an allreduce
};

}  // namespace hvdtune
