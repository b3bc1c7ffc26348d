#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/threads/patience.h"
#include "collective/activities.h"
#include "collective/communicator.h"
#include "collective/messages/message_exchange.h"

namespace hvdtune {

struct CommunicatorSpec;

inline constexpr Activities kGlooActivities("GLOO");
inline constexpr Activities kMpiActivities("MPI");

/// Collectives among the members of a Messenger: MPI or Gloo only sends the bytes, and this class
/// does the additions in its own order. Sums are therefore equal to those of shared memory, bit for
/// bit, for every dtype (Gloo has no bfloat16, MPI neither of the 16-bit floats), and every wait
/// can be interrupted, unlike a collective of MPI.
///
/// An allreduce cuts the message into blocks, and a block into one share per member. Member p gets
/// share p of all others, adds them in the order of ranks, and sends the sum to all others; the
/// next block is sent meanwhile. A short message is sent whole to all members.
class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::unique_ptr<Messenger> messenger, MessageGroup group,
                      const Activities& activities);

  [[nodiscard]] int size() const override { return static_cast<int>(exchange_.members()); }
  [[nodiscard]] int index() const override { return static_cast<int>(exchange_.self()); }
  [[nodiscard]] const char* activity(OpKind kind) const override;

  PhaseTimes allreduce(const AllreduceJob& job) override;
  PhaseTimes broadcast(const BroadcastJob& job) override;
  PhaseTimes allgather(const AllgatherJob& job) override;
  PhaseTimes alltoall(const AlltoallJob& job) override;
  PhaseTimes reducescatter(const ReducescatterJob& job) override;
  PhaseTimes sendrecv(const SendrecvJob& job) override;
  void barrier() override;

  void tune(const Tuning& tuning) override;

  void time_waits(bool timed) override { exchange_.time_waits(timed); }
  [[nodiscard]] Nanos waited() const override { return exchange_.waited(); }
  void show_waiting(std::atomic<Nanos>& seen) override { exchange_.show_waiting(seen); }
  void report_absence(Nanos patience, AbsenceReport report) override {
    exchange_.report_absence(patience, std::move(report));
  }

 private:
  class BlockedAllreduce;
  class Chunks;
  /// For each member the data to send to it, or to receive from it; null = nothing.
  using Lists = std::vector<const SegmentList*>;

  void allreduce_one_shot(const AllreduceJob& job, PhaseTimes& times);
  void transfer(const Lists& to, const Lists& from, PhaseTimes& times);
  template <typename Job>
  PhaseTimes exchange_all(const Lists& to, const Job& job);
  [[nodiscard]] std::vector<std::int64_t> exchange_lengths(const std::vector<std::int64_t>& mine);

  MessageExchange exchange_;
  const Activities& activities_;
  std::size_t chunk_ = 0;           // of a message to one member, at most
  std::size_t one_shot_limit_ = 0;  // of an allreduce
};

/// For a factory: a group whose members learn from their host's arena that the job is over.
MessageGroup message_group(const CommunicatorSpec& spec);

}  // namespace hvdtune
