#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/op_kind.h"
#include "collective/kernels/segments.h"

namespace hvdtune {

/// When the phases of a collective happened on this rank, for the timeline. In a pipelined
/// collective the phases overlap; these are the ends of the pure parts: before `packed` only
/// packing, after `unpacking` only unpacking, both and the reduction in between.
struct PhaseTimes {
  Nanos packed = 0;     ///< the first chunk was copied into the fusion buffer
  Nanos unpacking = 0;  ///< the last chunk was complete on all ranks
};

struct AllreduceJob {
  const SegmentList& in;
  const SegmentList& out;  ///< same bytes as `in`; may be the same memory, piece by piece
  DType dtype;
  ReduceOp op;  ///< not kAverage: the caller folds 1/n into `postscale`
  double prescale = 1.0;
  double postscale = 1.0;
};

struct BroadcastJob {
  int root;                ///< index of the member that sends
  const SegmentList& in;   ///< read on the root only
  const SegmentList& out;  ///< same bytes on every member; on the root it may equal `in`
};

/// Lengths that only the senders know. They are sent with the first data, not before it.
struct Lengths {
  /// This member's numbers for the others; all members send equally many.
  const std::vector<std::int64_t>& mine;
  /// Called once, with the numbers of all members in member order. Prepares the job's `out`;
  /// returns AlltoallJob::longest (an allgather ignores it). An exception from it leaves the
  /// operation, and the other members keep waiting.
  std::function<std::size_t(const std::vector<std::int64_t>& all)> prepare;
};

struct AllgatherJob {
  const SegmentList& in;
  const std::vector<SegmentList>& out;  ///< one list per member, as long as that member's `in`
  const Lengths* lengths = nullptr;     ///< when `out` is not known yet
};

struct AlltoallJob {
  const std::vector<SegmentList>& in;   ///< data for each member
  const std::vector<SegmentList>& out;  ///< data from each member; sizes match the senders'
  std::size_t longest;                  ///< bytes of the longest message between any two members
  const Lengths* lengths = nullptr;     ///< when `out` and `longest` are not known yet
};

struct ReducescatterJob {
  const std::vector<SegmentList>& in;  ///< each member's share, in member order
  const SegmentList& out;              ///< as long as this member's share
  DType dtype;
  ReduceOp op;  ///< not kAverage
  double prescale = 1.0;
  double postscale = 1.0;
};

struct SendrecvJob {
  int partner;             ///< index of the member that this one exchanges with; it does the same
  const SegmentList& in;   ///< data for the partner
  const SegmentList& out;  ///< data from the partner
  std::size_t longest;     ///< bytes of the longest message of all pairs
};

/// Reports which members keep this one waiting, and for how long already.
using AbsenceReport = std::function<void(const std::vector<int>& missing, Nanos waited)>;

/// How to write data that other members read.
enum class Writing : std::uint8_t {
  kMeasured,  ///< whichever is faster at the time
  kCached,    ///< into the cache that they share with this CPU
  kStreamed,  ///< bypassing the caches
};

/// The operations of ranks on several hosts that run within each host first, and then between
/// hosts.
struct Hierarchy {
  bool allreduce = false;
  bool allgather = false;
};

/// Settings of a communicator. Sizes in bytes; 0 = its own choice.
struct Tuning {
  std::int64_t chunk_size = 0;      ///< largest piece of a message that is worked on at once
  std::int64_t one_shot_limit = 0;  ///< longest message that every member reduces whole
  Writing writing = Writing::kMeasured;
  /// For communicators that know hosts; none = no change.
  std::optional<Hierarchy> hierarchy = {};
};

class Communicator;

/// Two communicators: `within` has the members on this host, in the order of members; `between` has
/// one member of each host, in the order of hosts (host_columns.h). A caller uses them to reduce
/// other memory in the same way; nothing else may use them meanwhile.
struct HostsFirst {
  Communicator& within;
  Communicator& between;
};

/// `size()` members, this one's index, and the collectives on their buffers. Each data plane
/// implements it: shared memory, sockets, or messages over MPI or Gloo.
///
/// All members call the same operations in the same order with matching sizes; the coordinator's
/// schedule guarantees it. Calls block until this member's part is done and its output complete;
/// inputs may be reused then. A communicator belongs to one thread at a time. Every call throws
/// Error(kAborted) if the job is aborted; outputs are undefined then. Results are bitwise equal on
/// all members.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int index() const = 0;
  /// The timeline's name of an operation's exchange, e.g. "SHM_ALLREDUCE". Static storage.
  [[nodiscard]] virtual const char* activity(OpKind kind) const = 0;

  virtual PhaseTimes allreduce(const AllreduceJob& job) = 0;
  virtual PhaseTimes broadcast(const BroadcastJob& job) = 0;
  virtual PhaseTimes allgather(const AllgatherJob& job) = 0;
  virtual PhaseTimes alltoall(const AlltoallJob& job) = 0;
  virtual PhaseTimes reducescatter(const ReducescatterJob& job) = 0;
  /// All members call it at once, in pairs.
  virtual PhaseTimes sendrecv(const SendrecvJob& job) = 0;
  virtual void barrier() = 0;

  /// Gathers `mine` from every member, in member order. All members pass the same count: this is
  /// how sizes are exchanged before an allgather or alltoall.
  std::vector<std::int64_t> exchange(const std::vector<std::int64_t>& mine);

  /// All members call it at the same place in the schedule.
  virtual void tune(const Tuning& tuning) = 0;

  /// The communicators of hierarchical allreduces, if allreduces run within each host first at
  /// present and every host has equally many members. The same on all members at the same place in
  /// the schedule. They exist as long as this communicator.
  [[nodiscard]] virtual std::optional<HostsFirst> hosts_first() { return {}; }

  /// While this member waits for others, it regularly stores the time in `seen`; see
  /// Arena::seen_waiting(). Does nothing if no rank that shares its memory waits for it meanwhile.
  virtual void show_waiting(std::atomic<Nanos>&) {}

  /// From now on another communicator of its members uses the same buffers. Collective. Does
  /// nothing if every communicator has its own buffers.
  virtual void share_buffers() {}

  /// Makes waited() count from 0, or stops it. Counting costs two reads of the clock for every wait
  /// that does not end at once.
  virtual void time_waits(bool) {}
  /// How long this member has waited for others since time_waits(true); 0 if it is not known.
  [[nodiscard]] virtual Nanos waited() const { return 0; }

  /// Calls `report(ranks, waited)`, within an operation, when `ranks` (global) have kept this
  /// member waiting for `patience`, and after each further `patience`. Only one of the waiting
  /// members reports.
  virtual void report_absence(Nanos patience, AbsenceReport report) = 0;
};

}  // namespace hvdtune
