#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collective/communicator_factory.h"
#include "collective/hierarchy/host_columns.h"
#include "collective/shm/shm_communicator.h"

namespace hvdtune {

/// Collectives among ranks of several hosts, of which some share memory.
///
/// An allreduce has three phases, one after the other: a reducescatter in the shared memory of each
/// host, an allreduce of each share among the members of its column (host_columns.h), and an
/// allgather in shared memory. For a message of S bytes, each of h hosts sends 2 (h-1)/h S bytes,
/// as many as if it were one rank, and all ranks of a host send at the same time. An allgather
/// sends a rank's data to one rank of every other host, and spreads it there in shared memory. All
/// phases work in the tensors of the result. Every column has its own receive buffers, like any
/// communicator between hosts, whether over sockets, MPI or Gloo.
///
/// Sums are taken in the order of ranks within each host, then in the order of hosts; float16 and
/// bfloat16 are rounded once after each. So all ranks have the same bits, in every run, whatever
/// the length of a message and the position of a tensor in it. But the results differ in the last
/// digit from those of the other communicators, which add all ranks in a single sequence. Short
/// messages use the same algorithm, because it depends on timing which tensors share a message.
///
/// All other operations, and these two unless they are chosen to be hierarchical, use a flat
/// communicator of all members.
class HierarchicalCommunicator final : public Communicator {
 public:
  /// The communicator's members, and their hosts.
  struct Place {
    std::vector<int> members;  ///< ranks, ascending
    std::vector<int> hosts;    ///< by member, a number that identifies its host
    int index;                 ///< of this rank among them
    int number;                ///< of the process set; below kMaxProcessSets
  };

  /// Connects members on the member at `index`; their ranks are given in the order in which sums
  /// are taken, and `number` identifies the group. Collective if making that communicator is.
  using Connect = std::function<std::unique_ptr<Communicator>(const std::vector<int>& members,
                                                              int index, int number)>;

  /// `arena`: of this rank's host, whose barrier and distance cells `place.number` no other
  /// communicator uses. Calls `between` for all members first, then for each column that this
  /// member is in; all begin with the first column. The rules of ShmCommunicator, and of the
  /// communicators that `between` makes, apply to all members here.
  HierarchicalCommunicator(const std::shared_ptr<Arena>& arena, Place place, Hierarchy hierarchy,
                           const Connect& between, Patience patience,
                           std::shared_ptr<HelperPool> helpers = nullptr);

  [[nodiscard]] int size() const override { return flat_->size(); }
  [[nodiscard]] int index() const override { return flat_->index(); }
  [[nodiscard]] const char* activity(OpKind kind) const override;

  PhaseTimes allreduce(const AllreduceJob& job) override;
  PhaseTimes broadcast(const BroadcastJob& job) override { return flat_->broadcast(job); }
  PhaseTimes allgather(const AllgatherJob& job) override;
  PhaseTimes alltoall(const AlltoallJob& job) override { return flat_->alltoall(job); }
  PhaseTimes reducescatter(const ReducescatterJob& job) override {
    return flat_->reducescatter(job);
  }
  PhaseTimes sendrecv(const SendrecvJob& job) override { return flat_->sendrecv(job); }
  void barrier() override { flat_->barrier(); }

  void tune(const Tuning& tuning) override;
  [[nodiscard]] std::optional<HostsFirst> hosts_first() override;

  /// Like ShmCommunicator::set_window_shared(), for the members on this host.
  void set_window_shared(bool shared) { local_.set_window_shared(shared); }
  void share_buffers() override { local_.share_buffers(); }

  void time_waits(bool timed) override;
  [[nodiscard]] Nanos waited() const override;

  /// Members of this host that wait for other hosts in the middle of a hierarchical operation are
  /// not missing. If a member of another host does not arrive, either the members beside it also
  /// wait for it, or it waits for one of them; that host reports both cases. After twice
  /// `patience`, this host reports all ranks of that host: some of them are missing.
  void report_absence(Nanos patience, AbsenceReport report) override;

 private:
  struct Column {
    std::size_t number;
    std::unique_ptr<Communicator> members;
  };

  /// Calls exchange(column) for each of its columns, in order.
  template <typename Exchange>
  void exchange_between_hosts(Exchange&& exchange);
  PhaseTimes allreduce_in_shares(const AllreduceJob& job);
  PhaseTimes allgather_by_columns(const AllgatherJob& job);
  [[nodiscard]] SegmentList share_of(const SegmentList& message, std::size_t local) const;
  [[nodiscard]] bool brings_data(std::size_t column, std::size_t host) const;
  [[nodiscard]] SegmentList gathered_by(std::size_t local,
                                        const std::vector<SegmentList>& out) const;
  [[nodiscard]] bool waits_for_hosts(int rank, Nanos patience) const;
  void report_other_hosts(std::size_t column, const std::vector<int>& missing, Nanos waited,
                          Nanos patience, const AbsenceReport& report) const;
  [[nodiscard]] int own_rank() const {
    return place_.members[static_cast<std::size_t>(place_.index)];
  }
  [[nodiscard]] std::size_t locals() const { return columns_.on_host(host_).size(); }

  std::shared_ptr<Arena> arena_;
  Place place_;
  Hierarchy hierarchy_;
  HostColumns columns_;
  std::size_t host_;
  std::size_t local_index_;
  std::unique_ptr<Communicator> flat_;  // all members
  ShmCommunicator local_;
  std::vector<Column> own_columns_;  // ascending
  std::vector<std::byte> staged_;    // the result, if that is in several places
};

}  // namespace hvdtune
