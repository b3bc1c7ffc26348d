// The operations over sockets that reduce: allreduce and reducescatter.

#include <algorithm>
#include <array>

#include "base/check.h"
#include "collective/kernels/reduction.h"
#include "collective/sockets/socket_communicator.h"

namespace hvdtune {
namespace {

// Chunks of each member that can arrive while one is reduced.
constexpr std::size_t kChunksAhead = 3;

}  // namespace

/// Receives `bytes` bytes from every other member, chunk by chunk, and reduces them with this
/// member's, which are [begin, begin + bytes) of `own`, into the same part of `out`.
class SocketCommunicator::Reduction {
 public:
  struct Data {
    const SegmentList& own;
    const SegmentList& out;
    std::size_t begin;
    std::size_t bytes;
    DType dtype;
    ReduceOp op;
    double postscale;
  };

  Reduction(SocketCommunicator& communicator, const Data& data)
      : c_(communicator),
        streams_(communicator.streams_),
        data_(data),
        chunk_(std::min(c_.chunk_, data.bytes)) {
    c_.incoming_.resize(std::max(c_.incoming_.size(), streams_.members() * kSlots * chunk_));
  }

  /// The headers, and the data to send after them, must be queued. Calls all_queued() when
  /// everything that this waits for is queued, so that the caller can queue further receives, and
  /// reduced(begin, bytes) when this part of `out` is complete. `sent`: a part must have been sent
  /// before it is overwritten.
  template <typename AllQueued, typename Reduced>
  void run(bool sent, AllQueued&& all_queued, Reduced&& reduced) {
    const std::size_t chunks = data_.bytes == 0 ? 0 : (data_.bytes + chunk_ - 1) / chunk_;
    std::size_t queued = 0;
    const auto queue_more = [&](std::size_t limit) {
      if (queued == chunks) return;
      while (queued < std::min(limit, chunks)) queue(queued++);
      if (queued == chunks) all_queued();
    };
    if (chunks == 0) all_queued();
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      queue_more(chunk + kSlots);
      const std::size_t end = std::min((chunk + 1) * chunk_, data_.bytes);
      streams_.move_until([&] { return is_there(end, sent); });
      reduce(chunk, end - chunk * chunk_);
      reduced(data_.begin + chunk * chunk_, end - chunk * chunk_);
    }
  }

 private:
  static constexpr std::size_t kSlots = kChunksAhead + 1;

  std::byte* slot(std::size_t member, std::size_t chunk) {
    return c_.incoming_.data() + (member * kSlots + chunk % kSlots) * chunk_;
  }

  void queue(std::size_t chunk) {
    const std::size_t bytes = std::min(chunk_, data_.bytes - chunk * chunk_);
    c_.for_others(
        [&](std::size_t member) { streams_.receive(member, slot(member, chunk), bytes); });
  }

  /// Whether all members' bytes up to `end` have arrived and, if `sent`, this member's have been
  /// sent.
  [[nodiscard]] bool is_there(std::size_t end, bool sent) const {
    for (std::size_t member = 0; member < streams_.members(); ++member) {
      if (member == streams_.self()) continue;
      if (streams_.received(member) < SocketStreams::kHeaderBytes + end) return false;
      if (sent && streams_.sent(member) < SocketStreams::kHeaderBytes + end) return false;
    }
    return true;
  }

  void reduce(std::size_t chunk, std::size_t bytes) {
    std::array<const std::byte*, kMostSources> sources;
    for (std::size_t member = 0; member < streams_.members(); ++member) {
      sources[member] = slot(member, chunk);
    }
    reduce_with_own_to_segments(sources.data(), streams_.members(), streams_.self(), data_.own,
                                data_.out, data_.begin + chunk * chunk_, bytes, data_.dtype,
                                data_.op, data_.postscale);
  }

  SocketCommunicator& c_;
  SocketStreams& streams_;
  Data data_;
  std::size_t chunk_;
};

/// A copy of the lists, scaled, end to end.
std::vector<SegmentList> SocketCommunicator::stage(const std::vector<SegmentList>& lists,
                                                   DType dtype, double prescale) {
  std::size_t total = 0;
  for (const SegmentList& list : lists) total += list.bytes();
  if (staged_.size() < total) staged_.resize(total);
  std::vector<SegmentList> staged(lists.size());
  std::byte* at = staged_.data();
  for (std::size_t i = 0; i < lists.size(); ++i) {
    pack(lists[i], 0, lists[i].bytes(), at, dtype, prescale);
    staged[i].add(at, lists[i].bytes());
    at += lists[i].bytes();
  }
  return staged;
}

PhaseTimes SocketCommunicator::allreduce(const AllreduceJob& job) {
  HVD_CHECK(job.in.bytes() == job.out.bytes());
  PhaseTimes times{monotonic_now(), 0};
  if (others() == 0) {
    reduce_alone(job.in, job.out, job.dtype, job.prescale, job.postscale);
  } else if (!job.in.empty()) {
    streams_.begin(OpKind::kAllreduce);
    // Scaled data exists nowhere else; and if a tensor is in the batch twice, in place, the first
    // result overwrites the input of the second.
    const bool direct = job.prescale == 1.0 && !job.out.overlaps();
    const SegmentList in = direct ? job.in : stage({job.in}, job.dtype, job.prescale).front();
    times.packed = monotonic_now();
    if (in.bytes() <= one_shot_limit_) {
      allreduce_one_shot(job, in, times);
    } else {
      allreduce_in_shares(job, in, times);
    }
    streams_.end();
    return times;
  }
  times.unpacking = monotonic_now();
  return times;
}

/// Every member sends all its data to all others, and reduces all of it.
void SocketCommunicator::allreduce_one_shot(const AllreduceJob& job, const SegmentList& in,
                                            PhaseTimes& times) {
  for_others([&](std::size_t member) {
    streams_.open(member, in.bytes());
    streams_.send(member, in);
    streams_.expect(member);
  });
  Reduction(*this, {in, job.out, 0, in.bytes(), job.dtype, job.op, job.postscale})
      .run(true, [] {}, [](std::size_t, std::size_t) {});
  times.unpacking = monotonic_now();
  streams_.move_all();
  for_others([&](std::size_t member) { streams_.check(member, in.bytes()); });
}

/// A member receives its share from all others, and sends its sum to all others, after the data for
/// their shares.
void SocketCommunicator::allreduce_in_shares(const AllreduceJob& job, const SegmentList& in,
                                             PhaseTimes& times) {
  const std::size_t members = streams_.members();
  const auto share = [&](std::size_t member) { return chunk_part(0, in.bytes(), member, members); };
  const Part own = share(streams_.self());
  for_others([&](std::size_t member) {
    const Part theirs = share(member);
    streams_.open(member, theirs.bytes + own.bytes);
    streams_.send(member, in, theirs.begin, theirs.bytes);
    streams_.expect(member);
  });
  const auto receive_sums = [&] {
    for_others([&](std::size_t member) {
      const Part theirs = share(member);
      job.out.for_range(theirs.begin, theirs.bytes, [&](std::byte* piece, std::size_t bytes) {
        streams_.receive(member, piece, bytes);
      });
    });
  };
  Reduction(*this, {in, job.out, own.begin, own.bytes, job.dtype, job.op, job.postscale})
      .run(false, receive_sums, [&](std::size_t begin, std::size_t bytes) {
        for_others([&](std::size_t member) { streams_.send(member, job.out, begin, bytes); });
      });
  times.unpacking = monotonic_now();
  streams_.move_all();
  for_others([&](std::size_t member) { streams_.check(member, own.bytes + share(member).bytes); });
}

PhaseTimes SocketCommunicator::reducescatter(const ReducescatterJob& job) {
  const std::size_t self = streams_.self();
  HVD_CHECK(job.in.size() == streams_.members() && job.out.bytes() == job.in[self].bytes());
  PhaseTimes times{monotonic_now(), 0};
  const auto is_empty = [](const SegmentList& list) { return list.empty(); };
  if (others() == 0) {
    reduce_alone(job.in[0], job.out, job.dtype, job.prescale, job.postscale);
  } else if (!std::all_of(job.in.begin(), job.in.end(), is_empty)) {
    streams_.begin(OpKind::kReducescatter);
    const std::vector<SegmentList> in =
        job.prescale == 1.0 ? job.in : stage(job.in, job.dtype, job.prescale);
    times.packed = monotonic_now();
    for_others([&](std::size_t member) {
      streams_.open(member, in[member].bytes());
      streams_.send(member, in[member]);
      streams_.expect(member);
    });
    Reduction(*this, {in[self], job.out, 0, job.out.bytes(), job.dtype, job.op, job.postscale})
        .run(false, [] {}, [](std::size_t, std::size_t) {});
    streams_.move_all();
    for_others([&](std::size_t member) { streams_.check(member, job.out.bytes()); });
    streams_.end();
  }
  times.unpacking = monotonic_now();
  return times;
}

}  // namespace hvdtune
