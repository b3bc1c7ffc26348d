// The operations that need no second exchange. A member packs its data into its window, chunk after
// chunk; its readers copy (or reduce) directly from there into their results. A step packs the next
// chunk before it waits for the current one, so that one barrier per chunk is enough.

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "collective/kernels/reduction.h"
#include "collective/shm/shm_communicator.h"

namespace hvdtune {
namespace {

// A broadcast begins with one member packing while the others wait, so its chunks are short. If
// ranks outnumber the CPUs, the barriers of short chunks cost more than that wait.
constexpr std::size_t kBroadcastChunks = 4;
constexpr std::size_t kLeastBroadcastChunk = 128 << 10;

/// The part of a message of `total` bytes that is in chunk number `chunk`.
Part piece_of(std::size_t chunk, std::size_t step, std::size_t total) {
  const std::size_t begin = std::min(chunk * step, total);
  return {begin, 0, std::min(step, total - begin)};
}

std::size_t chunks_of(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step; }

std::size_t header_bytes(const Lengths* lengths) {
  if (lengths == nullptr) return 0;
  const std::size_t bytes = lengths->mine.size() * sizeof(std::int64_t);
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// Writes the lengths, if there are any, and returns the address where the data begins.
std::byte* publish_lengths(const Lengths* lengths, std::byte* to) {
  if (lengths == nullptr) return to;
  std::memcpy(to, lengths->mine.data(), lengths->mine.size() * sizeof(std::int64_t));
  return to + header_bytes(lengths);
}

std::size_t longest_of(const std::vector<SegmentList>& lists) {
  std::size_t longest = 0;
  for (const SegmentList& list : lists) longest = std::max(longest, list.bytes());
  return longest;
}

std::size_t total_of(const std::vector<SegmentList>& lists) {
  std::size_t total = 0;
  for (const SegmentList& list : lists) total += list.bytes();
  return total;
}

PhaseTimes nothing() { return {monotonic_now(), monotonic_now()}; }

}  // namespace

/// Copies into the window. A streamed copy needs order_copies() afterwards.
void ShmCommunicator::publish(std::size_t message, const SegmentList& data, const Part& piece,
                              std::byte* to, CopyKind writing) const {
  helpers_->share(message, piece.bytes, [&](std::size_t begin, std::size_t end) {
    pack(data, piece.begin + begin, end - begin, to + begin, DType::kUint8, 1.0, writing);
  });
}

/// Copies out of a window.
void ShmCommunicator::fetch(std::size_t message, const SegmentList& out, const Part& piece,
                            const std::byte* from, CopyKind copies) const {
  helpers_->share(message, piece.bytes, [&](std::size_t begin, std::size_t end) {
    out.copy_in(piece.begin + begin, end - begin, from + begin, copies);
  });
}

/// Copies from this member's tensors to its results.
void ShmCommunicator::keep(std::size_t message, const SegmentList& in, const SegmentList& out,
                           const Part& piece, CopyKind copies) const {
  helpers_->share(message, piece.bytes, [&](std::size_t begin, std::size_t end) {
    copy_segments(in, out, piece.begin + begin, end - begin, copies);
  });
}

/// pack(chunk, serial, how) writes a chunk's data for the peers into the window; it may be called
/// for one chunk more than there is. count(serial) returns the number of chunks, at least 1, once
/// all members' first chunks can be read. consume(chunk, serial) reads a chunk that all members
/// have packed. `header`: bytes before the first chunk's data.
template <typename Pack, typename Count, typename Consume>
PhaseTimes ShmCommunicator::stream(std::size_t header, Pack&& pack_chunk, Count&& count,
                                   Consume&& consume) {
  const auto next_chunk = [&](std::size_t chunk, std::uint64_t serial) {
    const CopyKind writing = distance_.writing(exchange_chunk_);
    pack_chunk(chunk, serial, writing);
    order_copies(writing);
  };
  PhaseTimes times;
  const std::uint64_t first = exchange_window_.open(header + exchange_chunk_);
  next_chunk(0, first);
  barrier_.arrive();
  times.packed = monotonic_now();
  std::size_t chunks = 2;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) next_chunk(chunk + 1, exchange_window_.open(exchange_chunk_));
    barrier_.wait();
    if (chunk == 0) chunks = count(first);
    if (chunk + 1 == chunks) times.unpacking = monotonic_now();
    consume(chunk, first + chunk);
    if (chunk + 1 < chunks) barrier_.arrive();
  }
  end_operation();
  return times;
}

std::size_t ShmCommunicator::broadcast_chunk(std::size_t total) const {
  if (crowded_) return exchange_chunk_;
  const std::size_t part = chunks_of(total / kBroadcastChunks + 1, kCacheLine) * kCacheLine;
  return std::min(std::max(part, kLeastBroadcastChunk), exchange_chunk_);
}

/// How to write results of `bytes` bytes, if every member writes about as many.
CopyKind ShmCommunicator::result_copies(std::size_t bytes) const {
  const bool exceeds = bytes * members_.size() > shared_cache_bytes() / 2;
  return exceeds ? CopyKind::kStreamed : CopyKind::kCached;
}

/// All members' lengths, in member order, from the operation's first chunk.
std::vector<std::int64_t> ShmCommunicator::published_lengths(const Lengths& lengths,
                                                             std::uint64_t chunk) const {
  const std::size_t count = lengths.mine.size();
  std::vector<std::int64_t> all(count * members_.size());
  for (std::size_t member = 0; member < members_.size() && count > 0; ++member) {
    std::memcpy(&all[member * count], exchange_window(member, chunk), count * sizeof(std::int64_t));
  }
  return all;
}

PhaseTimes ShmCommunicator::broadcast(const BroadcastJob& job) {
  const bool sender = job.root == index_;
  const std::size_t total = job.out.bytes();
  const auto root = static_cast<std::size_t>(job.root);
  if (others() == 0) copy_segments(job.in, job.out, total);
  if (others() == 0 || total == 0) return nothing();
  const std::size_t step = broadcast_chunk(total);
  const CopyKind copies = result_copies(total);
  return stream(
      0,
      [&](std::size_t chunk, std::uint64_t serial, CopyKind writing) {
        const Part piece = piece_of(chunk, step, total);
        if (sender) publish(total, job.in, piece, exchange_window(root, serial), writing);
      },
      [&](std::uint64_t) { return chunks_of(total, step); },
      [&](std::size_t chunk, std::uint64_t serial) {
        const Part piece = piece_of(chunk, step, total);
        if (sender) {
          keep(total, job.in, job.out, piece, copies);
        } else {
          fetch(total, job.out, piece, exchange_window(root, serial), copies);
        }
      });
}

PhaseTimes ShmCommunicator::allgather(const AllgatherJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  const std::size_t header = header_bytes(job.lengths);
  if (header > kMaxExchangeHeader || (job.lengths != nullptr && others() == 0)) {
    job.lengths->prepare(exchange(job.lengths->mine));
    return allgather({job.in, job.out});
  }
  if (others() == 0) copy_segments(job.in, job.out[self], job.in.bytes());
  if (others() == 0) return nothing();
  if (job.lengths == nullptr && total_of(job.out) == 0) return nothing();
  const std::size_t step = exchange_chunk_;
  CopyKind copies = CopyKind::kCached;
  std::size_t total = job.in.bytes();  // then of all results
  return stream(
      header,
      [&](std::size_t chunk, std::uint64_t serial, CopyKind writing) {
        std::byte* to = exchange_window(self, serial);
        if (chunk == 0) to = publish_lengths(job.lengths, to);
        const Part piece = piece_of(chunk, step, job.in.bytes());
        publish(total, job.in, piece, to, writing);
      },
      [&](std::uint64_t first) {
        if (job.lengths != nullptr) job.lengths->prepare(published_lengths(*job.lengths, first));
        HVD_CHECK(job.out.size() == members_.size() && job.out[self].bytes() == job.in.bytes());
        total = total_of(job.out);
        copies = result_copies(total);
        return std::max<std::size_t>(chunks_of(longest_of(job.out), step), 1);
      },
      [&](std::size_t chunk, std::uint64_t serial) {
        // This member's own part first, which is in cache, then the next members', so that members
        // read different windows at a time.
        const Part own = piece_of(chunk, step, job.in.bytes());
        keep(total, job.in, job.out[self], own, copies);
        for (std::size_t turn = 1; turn < members_.size(); ++turn) {
          const std::size_t member = (self + turn) % members_.size();
          const Part piece = piece_of(chunk, step, job.out[member].bytes());
          fetch(total, job.out[member], piece,
                exchange_window(member, serial) + (chunk == 0 ? header : 0), copies);
        }
      });
}

PhaseTimes ShmCommunicator::alltoall(const AlltoallJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  const std::size_t header = header_bytes(job.lengths);
  if (header > kMaxExchangeHeader || (job.lengths != nullptr && others() == 0)) {
    const std::size_t longest = job.lengths->prepare(exchange(job.lengths->mine));
    return alltoall({job.in, job.out, longest});
  }
  if (others() == 0) copy_segments(job.in[self], job.out[self], job.in[self].bytes());
  if (others() == 0 || (job.lengths == nullptr && job.longest == 0)) return nothing();
  // Each chunk holds one piece for every member.
  const std::size_t step = exchange_chunk_ / members_.size();
  CopyKind copies = CopyKind::kCached;
  std::size_t total = total_of(job.in);  // then of all results
  return stream(
      header,
      [&](std::size_t chunk, std::uint64_t serial, CopyKind writing) {
        std::byte* to = exchange_window(self, serial);
        if (chunk == 0) to = publish_lengths(job.lengths, to);
        for (std::size_t member = 0; member < members_.size(); ++member) {
          if (member == self) continue;
          const Part piece = piece_of(chunk, step, job.in[member].bytes());
          publish(total, job.in[member], piece, to + member * step, writing);
        }
      },
      [&](std::uint64_t first) {
        const std::size_t longest =
            job.lengths == nullptr ? job.longest
                                   : job.lengths->prepare(published_lengths(*job.lengths, first));
        total = total_of(job.out);
        copies = result_copies(total);
        return std::max<std::size_t>(chunks_of(longest, step), 1);
      },
      [&](std::size_t chunk, std::uint64_t serial) {
        const Part own = piece_of(chunk, step, job.in[self].bytes());
        keep(total, job.in[self], job.out[self], own, copies);
        for (std::size_t turn = 1; turn < members_.size(); ++turn) {
          const std::size_t member = (self + turn) % members_.size();
          const Part piece = piece_of(chunk, step, job.out[member].bytes());
          const std::byte* from = exchange_window(member, serial) + (chunk == 0 ? header : 0);
          fetch(total, job.out[member], piece, from + self * step, copies);
        }
      });
}

PhaseTimes ShmCommunicator::reducescatter(const ReducescatterJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  HVD_CHECK(job.in.size() == members_.size() && job.out.bytes() == job.in[self].bytes());
  if (others() == 0) {
    reduce_alone(job.in[0], job.out, job.dtype, job.prescale, job.postscale);
    return nothing();
  }
  const std::size_t longest = longest_of(job.in);
  if (longest == 0) return nothing();
  const std::size_t step = exchange_chunk_ / members_.size();
  const bool direct = job.prescale == 1.0;  // scaled data exists only in the window
  const std::size_t total = total_of(job.in);
  return stream(
      0,
      [&](std::size_t chunk, std::uint64_t serial, CopyKind writing) {
        for (std::size_t member = 0; member < members_.size(); ++member) {
          if (member == self && direct) continue;
          const Part piece = piece_of(chunk, step, job.in[member].bytes());
          std::byte* to = exchange_window(self, serial) + member * step;
          helpers_->share(total, piece.bytes, [&](std::size_t begin, std::size_t end) {
            pack(job.in[member], piece.begin + begin, end - begin, to + begin, job.dtype,
                 job.prescale, writing);
          });
        }
      },
      [&](std::uint64_t) { return chunks_of(longest, step); },
      [&](std::size_t chunk, std::uint64_t serial) {
        const Part piece = piece_of(chunk, step, job.out.bytes());
        helpers_->share(total, piece.bytes, [&](std::size_t begin, std::size_t end) {
          std::array<const std::byte*, kMaxRanksPerHost> sources;
          for (std::size_t member = 0; member < members_.size(); ++member) {
            sources[member] = exchange_window(member, serial) + self * step + begin;
          }
          const std::size_t at = piece.begin + begin;
          if (direct) {
            reduce_with_own_to_segments(sources.data(), members_.size(), self, job.in[self],
                                        job.out, at, end - begin, job.dtype, job.op, job.postscale);
          } else {
            reduce_to_segments(sources.data(), members_.size(), job.out, at, end - begin, job.dtype,
                               job.op, job.postscale);
          }
        });
      });
}

PhaseTimes ShmCommunicator::sendrecv(const SendrecvJob& job) {
  if (job.longest == 0) return nothing();
  const auto self = static_cast<std::size_t>(index_);
  const auto partner = static_cast<std::size_t>(job.partner);
  const std::size_t step = exchange_chunk_;
  const CopyKind copies = result_copies(job.out.bytes());
  return stream(
      0,
      [&](std::size_t chunk, std::uint64_t serial, CopyKind writing) {
        const Part piece = piece_of(chunk, step, job.in.bytes());
        publish(job.longest, job.in, piece, exchange_window(self, serial), writing);
      },
      [&](std::uint64_t) { return chunks_of(job.longest, step); },
      [&](std::size_t chunk, std::uint64_t serial) {
        const Part piece = piece_of(chunk, step, job.out.bytes());
        fetch(job.longest, job.out, piece, exchange_window(partner, serial), copies);
      });
}

}  // namespace hvdtune
