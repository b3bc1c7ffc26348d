#include "collective/sockets/socket_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "collective/activities.h"
#include "collective/communicator_factory.h"
#include "collective/kernels/reduction.h"
#include "collective/network_tuning.h"

namespace hvdtune {

static_assert(kMaxMeshRanks <= kMostSources);

SocketCommunicator::SocketCommunicator(std::shared_ptr<Mesh> mesh, std::vector<int> members,
                                       int index, int number, Patience patience)
    : streams_(std::move(mesh), std::move(members), index, number, patience) {
  tune({});
}

void SocketCommunicator::tune(const Tuning& tuning) {
  constexpr NetworkTraits kTraits{.most_chunk = 256 << 10, .journey = 32 << 10};
  const NetworkSizes sizes = network_sizes(tuning, kTraits, streams_.members());
  chunk_ = sizes.chunk;
  one_shot_limit_ = sizes.one_shot_limit;
}

void SocketCommunicator::barrier() {
  if (others() == 0) return;
  streams_.begin(OpKind::kBarrier);
  for_others([this](std::size_t member) {
    streams_.open(member, 0);
    streams_.expect(member);
  });
  streams_.move_all();
  streams_.end();
}

PhaseTimes SocketCommunicator::sendrecv(const SendrecvJob& job) {
  PhaseTimes times{monotonic_now(), monotonic_now()};
  if (job.longest == 0) return times;
  const auto partner = static_cast<std::size_t>(job.partner);
  streams_.begin(OpKind::kAllreduce);
  streams_.open(partner, job.in.bytes());
  streams_.send(partner, job.in);
  streams_.expect(partner);
  streams_.receive(partner, job.out);
  streams_.move_all();
  streams_.check(partner, job.out.bytes());
  streams_.end();
  times.unpacking = monotonic_now();
  return times;
}

// ---- allgather, alltoall ------------------------------------------------------------------------

/// Sends outgoing(member) to every other member, after the lengths, if there are any, and receives
/// job.out, which is known once the lengths are.
template <typename Job, typename Outgoing>
PhaseTimes SocketCommunicator::exchange_all(OpKind kind, const Job& job, Outgoing&& outgoing) {
  PhaseTimes times{monotonic_now(), 0};
  const std::size_t self = streams_.self();
  const std::size_t count = job.lengths == nullptr ? 0 : job.lengths->mine.size();
  const std::size_t bytes = count * sizeof(std::int64_t);
  std::vector<std::int64_t> all(count * streams_.members());
  if (others() > 0) streams_.begin(kind);
  for_others([&](std::size_t member) {
    const SegmentList& data = outgoing(member);
    streams_.open(member, bytes + data.bytes());
    if (count > 0) {
      streams_.send(member, reinterpret_cast<const std::byte*>(job.lengths->mine.data()), bytes);
    }
    streams_.send(member, data);
    streams_.expect(member);
    streams_.receive(member, reinterpret_cast<std::byte*>(all.data() + member * count), bytes);
  });
  if (job.lengths != nullptr) {
    std::copy(job.lengths->mine.begin(), job.lengths->mine.end(),
              all.begin() + static_cast<std::ptrdiff_t>(self * count));
    streams_.move_until([this] { return streams_.all_received(); });
    job.lengths->prepare(all);
  }
  HVD_CHECK(job.out.size() == streams_.members());
  for_others([&](std::size_t member) { streams_.receive(member, job.out[member]); });
  copy_segments(outgoing(self), job.out[self], job.out[self].bytes());
  streams_.move_all();
  for_others([&](std::size_t member) { streams_.check(member, bytes + job.out[member].bytes()); });
  streams_.end();
  times.unpacking = monotonic_now();
  return times;
}

PhaseTimes SocketCommunicator::allgather(const AllgatherJob& job) {
  const auto is_empty = [](const SegmentList& list) { return list.empty(); };
  if (job.lengths == nullptr && std::all_of(job.out.begin(), job.out.end(), is_empty)) {
    return {monotonic_now(), monotonic_now()};
  }
  return exchange_all(OpKind::kAllgather, job,
                      [&job](std::size_t) -> const SegmentList& { return job.in; });
}

PhaseTimes SocketCommunicator::alltoall(const AlltoallJob& job) {
  if (job.lengths == nullptr && job.longest == 0) return {monotonic_now(), monotonic_now()};
  return exchange_all(OpKind::kAlltoall, job,
                      [&job](std::size_t member) -> const SegmentList& { return job.in[member]; });
}

// ---- broadcast ----------------------------------------------------------------------------------

namespace {

/// Below this, one trip through the network is faster than two.
constexpr std::size_t kWholeBroadcast = 32 << 10;

/// Part number `part` of `parts` of a list.
SegmentList part_of(const SegmentList& list, std::size_t part, std::size_t parts) {
  const Part place = chunk_part(0, list.bytes(), part, parts);
  SegmentList share;
  share.add(list, place.begin, place.bytes);
  return share;
}

}  // namespace

PhaseTimes SocketCommunicator::broadcast(const BroadcastJob& job) {
  const bool sender = job.root == index();
  const std::size_t total = job.out.bytes();
  PhaseTimes times{monotonic_now(), monotonic_now()};
  if (others() > 0 && total > 0) {
    streams_.begin(OpKind::kBroadcast);
    streams_.blame(static_cast<std::size_t>(job.root));
    times =
        others() == 1 || total <= kWholeBroadcast ? broadcast_whole(job) : broadcast_in_shares(job);
    streams_.end();
  }
  if (sender) copy_segments(job.in, job.out, total);
  return times;
}

PhaseTimes SocketCommunicator::broadcast_whole(const BroadcastJob& job) {
  PhaseTimes times{monotonic_now(), 0};
  const auto root = static_cast<std::size_t>(job.root);
  if (root == streams_.self()) {
    for_others([&](std::size_t member) {
      streams_.open(member, job.in.bytes());
      streams_.send(member, job.in);
    });
    streams_.move_all();
  } else {
    streams_.expect(root);
    streams_.receive(root, job.out);
    streams_.move_all();
    streams_.check(root, job.out.bytes());
  }
  times.unpacking = monotonic_now();
  return times;
}

/// Every member except the root receives a share from the root, and sends it to the others.
PhaseTimes SocketCommunicator::broadcast_in_shares(const BroadcastJob& job) {
  PhaseTimes times{monotonic_now(), 0};
  const auto root = static_cast<std::size_t>(job.root);
  const auto share_of = [&](const SegmentList& list, std::size_t member) {
    return part_of(list, member < root ? member : member - 1, others());
  };
  if (root == streams_.self()) {
    for_others([&](std::size_t member) {
      const SegmentList share = share_of(job.in, member);
      streams_.open(member, share.bytes());
      streams_.send(member, share);
    });
    streams_.move_all();
  } else {
    const SegmentList own = share_of(job.out, streams_.self());
    for_others([&](std::size_t member) {
      streams_.expect(member);
      streams_.receive(member, member == root ? own : share_of(job.out, member));
      if (member != root) streams_.open(member, own.bytes());
    });
    pass_on(job, own);
    streams_.move_all();
    for_others([&](std::size_t member) {
      streams_.check(member, member == root ? own.bytes() : share_of(job.out, member).bytes());
    });
  }
  times.unpacking = monotonic_now();
  return times;
}

/// Sends this member's share to the others as it arrives from the root.
void SocketCommunicator::pass_on(const BroadcastJob& job, const SegmentList& share) {
  const auto root = static_cast<std::size_t>(job.root);
  const std::uint64_t end = streams_.queued_in(root);
  const std::uint64_t begin = end - share.bytes();
  for (std::size_t done = 0; done < share.bytes();) {
    const std::size_t part = std::min(chunk_, share.bytes() - done);
    streams_.move_until([&] { return streams_.received(root) >= begin + done + part; });
    for_others([&](std::size_t member) {
      if (member != root) streams_.send(member, share, done, part);
    });
    done += part;
  }
}

// ---- the rest -----------------------------------------------------------------------------------

void SocketCommunicator::report_absence(Nanos patience, AbsenceReport report) {
  streams_.report_absence(patience, std::move(report));
}

const char* SocketCommunicator::activity(OpKind kind) const {
  static constexpr Activities kActivities("TCP");
  return kActivities.of(kind);
}

std::unique_ptr<Communicator> make_socket_communicator(const CommunicatorSpec& spec) {
  return std::make_unique<SocketCommunicator>(spec.session.mesh, spec.members, spec.index,
                                              spec.number, spec.patience);
}

std::unique_ptr<Communicator> make_own_communicator(const CommunicatorSpec& spec) {
  return spec.session.spans_hosts(spec.members) ? make_socket_communicator(spec)
                                                : make_shm_communicator(spec);
}

}  // namespace hvdtune
