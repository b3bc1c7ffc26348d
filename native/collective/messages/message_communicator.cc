#include "collective/messages/message_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "collective/communicator_factory.h"
#include "collective/kernels/reduction.h"
#include "collective/network_tuning.h"

namespace hvdtune {
namespace {

/// Below this, one trip through the network is faster than two.
constexpr std::size_t kWholeBroadcast = 32 << 10;

/// Part number `part` of `parts` of a list.
SegmentList part_of(const SegmentList& list, std::size_t part, std::size_t parts) {
  const Part place = chunk_part(0, list.bytes(), part, parts);
  SegmentList share;
  list.for_range(place.begin, place.bytes,
                 [&share](std::byte* piece, std::size_t bytes) { share.add(piece, bytes); });
  return share;
}

std::vector<const SegmentList*> pointers(const std::vector<SegmentList>& lists) {
  std::vector<const SegmentList*> found;
  found.reserve(lists.size());
  for (const SegmentList& list : lists) found.push_back(&list);
  return found;
}

}  // namespace

MessageCommunicator::MessageCommunicator(std::unique_ptr<Messenger> messenger, MessageGroup group,
                                         const Activities& activities)
    : exchange_(std::move(messenger), std::move(group)), activities_(activities) {
  HVD_CHECK(exchange_.members() <= kMostSources);
  tune({});
}

void MessageCommunicator::tune(const Tuning& tuning) {
  constexpr NetworkTraits kTraits{.most_chunk = 512 << 10, .journey = 16 << 10};
  constexpr std::size_t kMostMemory = 16 << 20;  // that a one-shot allreduce may take
  const NetworkSizes sizes = network_sizes(tuning, kTraits, exchange_.members());
  chunk_ = sizes.chunk;
  one_shot_limit_ = std::min(sizes.one_shot_limit, kMostMemory / exchange_.members());
}

// ---- allreduce ----------------------------------------------------------------------------------

/// Three blocks are in progress at a time: one whose data is being sent, one that is being added,
/// and one whose sums are being sent back.
class MessageCommunicator::BlockedAllreduce {
 public:
  BlockedAllreduce(MessageCommunicator& communicator, const AllreduceJob& job,
                   const SegmentList& in)
      : exchange_(communicator.exchange_),
        members_(exchange_.members()),
        job_(job),
        in_(in),
        share_(std::min(communicator.chunk_, whole_lines(in.bytes()))),
        block_(share_ * members_) {
    packed_ = exchange_.outgoing(kAlive * (block_ + share_));
    sums_ = packed_ + kAlive * block_;
    // Receives this member's share from all others, and the sums of the other shares.
    incoming_ = exchange_.incoming(2 * kAlive * block_);
  }

  void run(PhaseTimes& times) {
    const std::size_t blocks = (in_.bytes() + block_ - 1) / block_;
    scatter(0);
    times.packed = monotonic_now();
    for (std::size_t block = 0; block < blocks; ++block) {
      if (block + 1 < blocks) scatter(block + 1);
      add(block);
      if (block > 0) finish(block - 1);
    }
    times.unpacking = monotonic_now();
    finish(blocks - 1);
  }

 private:
  static constexpr std::size_t kAlive = 3;
  static_assert(2 * kAlive <= Messenger::kBatches);

  [[nodiscard]] std::size_t whole_lines(std::size_t bytes) const {
    const std::size_t share = (bytes + members_ - 1) / members_;
    return (share + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  [[nodiscard]] std::size_t bytes_of(std::size_t block) const {
    return std::min(block_, in_.bytes() - block * block_);
  }
  [[nodiscard]] Part part(std::size_t block, std::size_t member) const {
    return chunk_part(block * block_, bytes_of(block), member, members_);
  }
  std::byte* packed(std::size_t block) { return packed_ + block % kAlive * block_; }
  std::byte* own_sum(std::size_t block) { return sums_ + block % kAlive * share_; }
  std::byte* theirs(std::size_t block, std::size_t member) {
    return incoming_ + block % kAlive * block_ + member * share_;
  }
  std::byte* their_sum(std::size_t block, std::size_t member) {
    return theirs(block, member) + kAlive * block_;
  }
  static std::size_t shares_batch(std::size_t block) { return block % kAlive; }
  static std::size_t sums_batch(std::size_t block) { return kAlive + block % kAlive; }

  void scatter(std::size_t block) {
    const std::size_t batch = shares_batch(block);
    const std::size_t own = part(block, exchange_.self()).bytes;
    exchange_.for_others(
        [&](std::size_t member) { exchange_.receive(batch, member, theirs(block, member), own); });
    pack(in_, block * block_, bytes_of(block), packed(block), job_.dtype, job_.prescale);
    exchange_.for_others([&](std::size_t member) {
      const Part share = part(block, member);
      exchange_.send(batch, member, packed(block) + share.in_chunk, share.bytes);
    });
  }

  void add(std::size_t block) {
    exchange_.wait(shares_batch(block));
    const std::size_t batch = sums_batch(block);
    exchange_.for_others([&](std::size_t member) {
      exchange_.receive(batch, member, their_sum(block, member), part(block, member).bytes);
    });
    const Part own = part(block, exchange_.self());
    std::array<const std::byte*, kMostSources> sources;
    for (std::size_t member = 0; member < members_; ++member) {
      sources[member] = theirs(block, member);
    }
    sources[exchange_.self()] = packed(block) + own.in_chunk;
    reduce_block(sources.data(), members_, own_sum(block), own.bytes, job_.dtype, job_.op,
                 job_.postscale);
    exchange_.for_others(
        [&](std::size_t member) { exchange_.send(batch, member, own_sum(block), own.bytes); });
    job_.out.copy_in(own.begin, own.bytes, own_sum(block));
  }

  void finish(std::size_t block) {
    exchange_.wait(sums_batch(block));
    exchange_.for_others([&](std::size_t member) {
      const Part share = part(block, member);
      job_.out.copy_in(share.begin, share.bytes, their_sum(block, member));
    });
  }

  MessageExchange& exchange_;
  std::size_t members_;
  const AllreduceJob& job_;
  const SegmentList& in_;
  std::size_t share_;  // bytes of a member's share of a block, at most
  std::size_t block_;
  std::byte* packed_ = nullptr;
  std::byte* sums_ = nullptr;
  std::byte* incoming_ = nullptr;
};

PhaseTimes MessageCommunicator::allreduce(const AllreduceJob& job) {
  HVD_CHECK(job.in.bytes() == job.out.bytes());
  PhaseTimes times{monotonic_now(), monotonic_now()};
  if (job.in.empty()) return times;
  exchange_.begin();
  if (job.in.bytes() <= one_shot_limit_) {
    allreduce_one_shot(job, times);
  } else if (job.out.overlaps()) {
    // A tensor is in the batch twice, in place: the first result overwrites the input of the
    // second.
    std::vector<std::byte> copy(job.in.bytes());
    job.in.copy_out(0, copy.size(), copy.data());
    SegmentList in;
    in.add(copy.data(), copy.size());
    BlockedAllreduce(*this, job, in).run(times);
  } else {
    BlockedAllreduce(*this, job, job.in).run(times);
  }
  return times;
}

/// Every member sends all its data to all others, and reduces all of it.
void MessageCommunicator::allreduce_one_shot(const AllreduceJob& job, PhaseTimes& times) {
  const std::size_t members = exchange_.members();
  const std::size_t bytes = job.in.bytes();
  std::byte* own = exchange_.outgoing(bytes);
  std::byte* incoming = exchange_.incoming(bytes * members);
  exchange_.for_others(
      [&](std::size_t member) { exchange_.receive(0, member, incoming + member * bytes, bytes); });
  pack(job.in, 0, bytes, own, job.dtype, job.prescale);
  times.packed = monotonic_now();
  exchange_.for_others([&](std::size_t member) { exchange_.send(0, member, own, bytes); });
  exchange_.wait(0);
  times.unpacking = monotonic_now();
  std::array<const std::byte*, kMostSources> sources;
  for (std::size_t member = 0; member < members; ++member) {
    sources[member] = incoming + member * bytes;
  }
  sources[exchange_.self()] = own;
  reduce_to_segments(sources.data(), members, job.out, 0, bytes, job.dtype, job.op, job.postscale);
}

// ---- chunk by chunk -----------------------------------------------------------------------------

/// Transfers lists of different lengths, one or two per member, chunk by chunk: two chunks are in
/// progress at a time, one that is being sent and one that is being processed.
class MessageCommunicator::Chunks {
 public:
  static constexpr std::size_t kAlive = 2;

  /// `longest`: of all lists, in bytes.
  Chunks(MessageCommunicator& communicator, std::size_t longest)
      : members_(communicator.exchange_.members()),
        size_(std::min(communicator.chunk_, longest)),
        count_(size_ == 0 ? 0 : (longest + size_ - 1) / size_),
        outgoing_(communicator.exchange_.outgoing(kAlive * members_ * size_)),
        incoming_(communicator.exchange_.incoming(kAlive * members_ * size_)) {}

  [[nodiscard]] std::size_t count() const { return count_; }
  static std::size_t batch(std::size_t chunk) { return chunk % kAlive; }
  [[nodiscard]] std::size_t begin(std::size_t chunk) const { return chunk * size_; }
  /// Bytes of the chunk in a list of `total` bytes.
  [[nodiscard]] std::size_t length(std::size_t chunk, std::size_t total) const {
    return begin(chunk) < total ? std::min(size_, total - begin(chunk)) : 0;
  }
  std::byte* outgoing(std::size_t chunk, std::size_t member) {
    return outgoing_ + place(chunk, member);
  }
  std::byte* incoming(std::size_t chunk, std::size_t member) {
    return incoming_ + place(chunk, member);
  }

  /// Starts every chunk before it finishes the previous one; calls `meanwhile` once, after starting
  /// the first one.
  template <typename Start, typename Meanwhile, typename Finish>
  void run(PhaseTimes& times, Start&& start, Meanwhile&& meanwhile, Finish&& finish) {
    if (count_ > 0) start(0);
    times.packed = monotonic_now();
    meanwhile();
    for (std::size_t chunk = 0; chunk < count_; ++chunk) {
      if (chunk + 1 < count_) start(chunk + 1);
      finish(chunk);
    }
    times.unpacking = monotonic_now();
  }

 private:
  [[nodiscard]] std::size_t place(std::size_t chunk, std::size_t member) const {
    return (batch(chunk) * members_ + member) * size_;
  }

  std::size_t members_;
  std::size_t size_;  // of a chunk, at most
  std::size_t count_;
  std::byte* outgoing_;
  std::byte* incoming_;
};

PhaseTimes MessageCommunicator::reducescatter(const ReducescatterJob& job) {
  const std::size_t members = exchange_.members();
  const std::size_t self = exchange_.self();
  HVD_CHECK(job.in.size() == members && job.out.bytes() == job.in[self].bytes());
  PhaseTimes times{monotonic_now(), 0};
  std::size_t longest = 0;
  for (const SegmentList& list : job.in) longest = std::max(longest, list.bytes());
  if (longest > 0) exchange_.begin();
  Chunks chunks(*this, longest);
  const auto length = [&](std::size_t chunk, std::size_t member) {
    return chunks.length(chunk, job.in[member].bytes());
  };
  const auto start = [&](std::size_t chunk) {
    const std::size_t batch = Chunks::batch(chunk);
    exchange_.for_others([&](std::size_t member) {
      exchange_.receive(batch, member, chunks.incoming(chunk, member), length(chunk, self));
    });
    for (std::size_t member = 0; member < members; ++member) {
      pack(job.in[member], chunks.begin(chunk), length(chunk, member),
           chunks.outgoing(chunk, member), job.dtype, job.prescale);
    }
    exchange_.for_others([&](std::size_t member) {
      exchange_.send(batch, member, chunks.outgoing(chunk, member), length(chunk, member));
    });
  };
  const auto finish = [&](std::size_t chunk) {
    exchange_.wait(Chunks::batch(chunk));
    std::array<const std::byte*, kMostSources> sources;
    for (std::size_t member = 0; member < members; ++member) {
      sources[member] = chunks.incoming(chunk, member);
    }
    sources[self] = chunks.outgoing(chunk, self);
    reduce_to_segments(sources.data(), members, job.out, chunks.begin(chunk), length(chunk, self),
                       job.dtype, job.op, job.postscale);
  };
  chunks.run(times, start, [] {}, finish);
  return times;
}

// ---- operations without arithmetic --------------------------------------------------------------

/// Sends to[member] to every member and fills from[member], in chunks; copies this member's own.
void MessageCommunicator::transfer(const Lists& to, const Lists& from, PhaseTimes& times) {
  const std::size_t self = exchange_.self();
  const auto bytes = [](const SegmentList* list) { return list == nullptr ? 0 : list->bytes(); };
  std::size_t longest = 0;
  exchange_.for_others([&](std::size_t member) {
    longest = std::max({longest, bytes(to[member]), bytes(from[member])});
  });
  Chunks chunks(*this, longest);
  const auto length = [&](std::size_t chunk, const SegmentList* list) {
    return chunks.length(chunk, bytes(list));
  };
  const auto start = [&](std::size_t chunk) {
    const std::size_t batch = Chunks::batch(chunk);
    exchange_.for_others([&](std::size_t member) {
      exchange_.receive(batch, member, chunks.incoming(chunk, member), length(chunk, from[member]));
    });
    const SegmentList* packed = nullptr;  // many members may get the same
    std::byte* data = nullptr;
    exchange_.for_others([&](std::size_t member) {
      const std::size_t count = length(chunk, to[member]);
      if (count > 0 && to[member] != packed) {
        packed = to[member];
        data = chunks.outgoing(chunk, member);
        packed->copy_out(chunks.begin(chunk), count, data);
      }
      exchange_.send(batch, member, data, count);
    });
  };
  const auto copy_own = [&] {
    if (to[self] == nullptr || from[self] == nullptr) return;
    copy_segments(*to[self], *from[self], from[self]->bytes());
  };
  const auto finish = [&](std::size_t chunk) {
    exchange_.wait(Chunks::batch(chunk));
    exchange_.for_others([&](std::size_t member) {
      const std::size_t count = length(chunk, from[member]);
      if (count > 0) {
        from[member]->copy_in(chunks.begin(chunk), count, chunks.incoming(chunk, member));
      }
    });
  };
  chunks.run(times, start, copy_own, finish);
}

std::vector<std::int64_t> MessageCommunicator::exchange_lengths(
    const std::vector<std::int64_t>& mine) {
  const std::size_t bytes = mine.size() * sizeof(std::int64_t);
  std::vector<std::int64_t> all(mine.size() * exchange_.members());
  SegmentList own;
  own.add(const_cast<std::int64_t*>(mine.data()), bytes);  // SegmentList serves both directions
  std::vector<SegmentList> out(exchange_.members());
  for (std::size_t member = 0; member < out.size(); ++member) {
    out[member].add(all.data() + member * mine.size(), bytes);
  }
  PhaseTimes times;
  transfer(Lists(exchange_.members(), &own), pointers(out), times);
  return all;
}

template <typename Job>
PhaseTimes MessageCommunicator::exchange_all(const Lists& to, const Job& job) {
  PhaseTimes times{monotonic_now(), monotonic_now()};
  exchange_.begin();
  if (job.lengths != nullptr) job.lengths->prepare(exchange_lengths(job.lengths->mine));
  HVD_CHECK(job.out.size() == exchange_.members());
  transfer(to, pointers(job.out), times);
  return times;
}

PhaseTimes MessageCommunicator::allgather(const AllgatherJob& job) {
  return exchange_all(Lists(exchange_.members(), &job.in), job);
}

PhaseTimes MessageCommunicator::alltoall(const AlltoallJob& job) {
  return exchange_all(pointers(job.in), job);
}

PhaseTimes MessageCommunicator::broadcast(const BroadcastJob& job) {
  PhaseTimes times{monotonic_now(), monotonic_now()};
  const auto root = static_cast<std::size_t>(job.root);
  const std::size_t members = exchange_.members();
  const bool sends = root == exchange_.self();
  const std::size_t total = job.out.bytes();
  if (total > 0 && members > 1) exchange_.begin();
  Lists to(members, nullptr);
  Lists from(members, nullptr);
  if (members <= 2 || total <= kWholeBroadcast) {
    if (sends) std::fill(to.begin(), to.end(), &job.in);
    from[root] = &job.out;
    transfer(to, from, times);
    return times;
  }
  // Every member except the root gets a share from it, and sends it to all others except the root.
  const auto share_of = [&](const SegmentList& list, std::size_t member) {
    return part_of(list, member < root ? member : member - 1, members - 1);
  };
  std::vector<SegmentList> shares(members);
  for (std::size_t member = 0; member < members; ++member) {
    if (member != root) shares[member] = share_of(sends ? job.in : job.out, member);
  }
  if (sends) {
    to = pointers(shares);
    to[root] = nullptr;
    transfer(to, from, times);
    copy_segments(job.in, job.out, total);
    return times;
  }
  from[root] = &shares[exchange_.self()];
  transfer(to, from, times);
  to.assign(members, &shares[exchange_.self()]);
  from = pointers(shares);
  to[root] = from[root] = nullptr;
  transfer(to, from, times);
  return times;
}

PhaseTimes MessageCommunicator::sendrecv(const SendrecvJob& job) {
  PhaseTimes times{monotonic_now(), monotonic_now()};
  if (job.longest == 0) return times;
  exchange_.begin();
  Lists to(exchange_.members(), nullptr);
  Lists from(exchange_.members(), nullptr);
  to[static_cast<std::size_t>(job.partner)] = &job.in;
  from[static_cast<std::size_t>(job.partner)] = &job.out;
  transfer(to, from, times);
  return times;
}

void MessageCommunicator::barrier() {
  if (exchange_.others() == 0) return;
  exchange_.begin();
  static_cast<void>(exchange_lengths({0}));
}

// ---- the rest -----------------------------------------------------------------------------------

const char* MessageCommunicator::activity(OpKind kind) const { return activities_.of(kind); }

MessageGroup message_group(const CommunicatorSpec& spec) {
  return {spec.members, spec.index, spec.patience, [arena = spec.session.arena] {
            if (arena->aborted()) throw Error(arena->abort_status());
          }};
}

}  // namespace hvdtune
