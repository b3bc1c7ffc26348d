#include "collective/shm_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "collective/communicator_factory.h"
#include "collective/kernels.h"
#include "collective/shm_reduce.h"

namespace hvdtune {
namespace {

/// Which algorithm for which size, and in which pieces, all in bytes. docs/performance.md has the
/// measurements behind it.
struct ShmTuning {
  std::size_t one_shot_limit;
  std::size_t chunk;
  std::size_t ring;  ///< of a member's window: what is used of it, if a few chunks are not more
};

ShmTuning standard_tuning(std::size_t members, bool crowded) {
  constexpr std::size_t kAllRings = 4 << 20;
  if (!crowded) return {8 << 10, 256 << 10, kAllRings / members};
  // Members take turns on a CPU and find in its cache what the one before has left there.
  return {members <= 4 ? std::size_t{16 << 10} : std::size_t{8 << 10}, 128 << 10, 0};
}

}  // namespace

ShmCommunicator::ShmCommunicator(std::shared_ptr<Arena> arena, std::vector<int> members, int index,
                                 int cell, Patience patience)
    : arena_(std::move(arena)),
      members_(std::move(members)),
      index_(index),
      barrier_(*arena_, arena_->barrier(cell), static_cast<int>(members_.size()), index, patience),
      crowded_(arena_->oversubscribed()) {
  tune({});
}

void ShmCommunicator::tune(const Tuning& tuning) {
  const ShmTuning standard = standard_tuning(members_.size(), crowded_);
  const auto chosen = [](std::int64_t wanted, std::size_t otherwise) {
    return wanted > 0 ? static_cast<std::size_t>(wanted) : otherwise;
  };
  // A chunk is cut into one part a member, in whole cache lines.
  const std::size_t unit = kCacheLine * members_.size();
  const std::size_t wanted = chosen(tuning.chunk_size, standard.chunk);
  const std::size_t chunk = std::clamp(wanted, unit, std::size_t{kMaxChunk}) / unit * unit;
  if (chunk != chunk_bytes_) {
    // A peer may still read what lies elsewhere in the new order of things.
    if (chunk_bytes_ != 0) barrier();
    window_.resize(standard.ring, chunk);
    chunk_bytes_ = chunk;
  }
  // A one-shot message is a chunk, too.
  one_shot_limit_ = std::min(chosen(tuning.one_shot_limit, standard.one_shot_limit), chunk_bytes_);
}

std::byte* ShmCommunicator::window(std::size_t member, std::uint64_t chunk) const {
  return arena_->window(members_[member]) + window_.place(chunk);
}

void ShmCommunicator::barrier() {
  if (others() == 0) return;
  barrier_.arrive();
  barrier_.wait();
}

void ShmCommunicator::report_absence(Nanos patience, AbsenceReport report) {
  barrier_.report_absence(
      patience, [this, report = std::move(report)](const std::vector<int>& missing, Nanos waited) {
        std::vector<int> ranks;
        for (const int member : missing)
          ranks.push_back(members_[static_cast<std::size_t>(member)]);
        report(ranks, waited);
      });
}

void ShmCommunicator::end_operation() {
  if (window_shared_) barrier();
}

/// Its last operation may have ended without a barrier: peers may still read this rank's window.
void ShmCommunicator::share_buffers() {
  barrier();
  window_shared_ = true;
}

template <typename Pack, typename Consume>
PhaseTimes ShmCommunicator::stream(std::size_t chunks, Pack&& pack_chunk, Consume&& consume) {
  PhaseTimes times{monotonic_now(), monotonic_now()};
  if (chunks == 0) return times;
  const std::uint64_t first = window_.open(chunk_bytes_);
  pack_chunk(0, first);
  barrier_.arrive();
  times.packed = monotonic_now();
  for (std::size_t step = 1; step <= chunks; ++step) {
    if (step < chunks) pack_chunk(step, window_.open(chunk_bytes_));
    barrier_.wait();
    if (step == chunks) times.unpacking = monotonic_now();
    consume(step - 1, first + step - 1);
    if (step < chunks) barrier_.arrive();
  }
  end_operation();
  return times;
}

PhaseTimes ShmCommunicator::broadcast(const BroadcastJob& job) {
  const bool sender = job.root == index_;
  if (sender) copy_segments(job.in, job.out, job.in.bytes());
  if (others() == 0) return {monotonic_now(), monotonic_now()};
  const std::size_t total = job.out.bytes();
  const auto length = [&](std::size_t chunk) {
    return std::min(chunk_bytes_, total - chunk * chunk_bytes_);
  };
  const auto root = static_cast<std::size_t>(job.root);
  return stream((total + chunk_bytes_ - 1) / chunk_bytes_,
                [&](std::size_t chunk, std::uint64_t serial) {
                  if (!sender) return;
                  job.in.copy_out(chunk * chunk_bytes_, length(chunk), window(root, serial));
                },
                [&](std::size_t chunk, std::uint64_t serial) {
                  if (sender) return;
                  job.out.copy_in(chunk * chunk_bytes_, length(chunk), window(root, serial));
                });
}

PhaseTimes ShmCommunicator::allgather(const AllgatherJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  HVD_CHECK(job.out.size() == members_.size() && job.out[self].bytes() == job.in.bytes());
  copy_segments(job.in, job.out[self], job.in.bytes());
  if (others() == 0) return {monotonic_now(), monotonic_now()};
  std::size_t longest = 0;
  for (const SegmentList& out : job.out) longest = std::max(longest, out.bytes());
  const auto length = [&](std::size_t chunk, std::size_t total) {
    const std::size_t begin = chunk * chunk_bytes_;
    return begin >= total ? 0 : std::min(chunk_bytes_, total - begin);
  };
  return stream((longest + chunk_bytes_ - 1) / chunk_bytes_,
                [&](std::size_t chunk, std::uint64_t serial) {
                  const std::size_t bytes = length(chunk, job.in.bytes());
                  job.in.copy_out(chunk * chunk_bytes_, bytes, window(self, serial));
                },
                [&](std::size_t chunk, std::uint64_t serial) {
                  for (std::size_t turn = 1; turn < members_.size(); ++turn) {
                    const std::size_t member = (self + turn) % members_.size();
                    const std::size_t bytes = length(chunk, job.out[member].bytes());
                    job.out[member].copy_in(chunk * chunk_bytes_, bytes, window(member, serial));
                  }
                });
}

PhaseTimes ShmCommunicator::alltoall(const AlltoallJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  copy_segments(job.in[self], job.out[self], job.in[self].bytes());
  if (others() == 0) return {monotonic_now(), monotonic_now()};
  // Each chunk holds one piece for every member.
  const std::size_t piece = chunk_bytes_ / members_.size();
  const auto length = [&](std::size_t chunk, std::size_t total) {
    const std::size_t begin = chunk * piece;
    return begin >= total ? 0 : std::min(piece, total - begin);
  };
  return stream(
      (job.longest + piece - 1) / piece,
      [&](std::size_t chunk, std::uint64_t serial) {
        for (std::size_t member = 0; member < members_.size(); ++member) {
          if (member == self) continue;
          const std::size_t bytes = length(chunk, job.in[member].bytes());
          job.in[member].copy_out(chunk * piece, bytes, window(self, serial) + member * piece);
        }
      },
      [&](std::size_t chunk, std::uint64_t serial) {
        for (std::size_t turn = 1; turn < members_.size(); ++turn) {
          const std::size_t member = (self + turn) % members_.size();
          const std::size_t bytes = length(chunk, job.out[member].bytes());
          job.out[member].copy_in(chunk * piece, bytes, window(member, serial) + self * piece);
        }
      });
}

PhaseTimes ShmCommunicator::reducescatter(const ReducescatterJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  HVD_CHECK(job.in.size() == members_.size() && job.out.bytes() == job.in[self].bytes());
  if (others() == 0) {
    return allreduce_alone({job.in[0], job.out, job.dtype, job.op, job.prescale, job.postscale});
  }
  std::size_t longest = 0;
  for (const SegmentList& share : job.in) longest = std::max(longest, share.bytes());
  const std::size_t piece = chunk_bytes_ / members_.size();
  const auto length = [&](std::size_t chunk, std::size_t total) {
    const std::size_t begin = chunk * piece;
    return begin >= total ? 0 : std::min(piece, total - begin);
  };
  return stream((longest + piece - 1) / piece,
                [&](std::size_t chunk, std::uint64_t serial) {
                  for (std::size_t member = 0; member < members_.size(); ++member) {
                    const std::size_t bytes = length(chunk, job.in[member].bytes());
                    pack(job.in[member], chunk * piece, bytes,
                         window(self, serial) + member * piece, job.dtype, job.prescale);
                  }
                },
                [&](std::size_t chunk, std::uint64_t serial) {
                  std::array<const std::byte*, kMaxRanksPerHost> sources;
                  for (std::size_t member = 0; member < members_.size(); ++member) {
                    sources[member] = window(member, serial) + self * piece;
                  }
                  reduce_to_segments(sources.data(), members_.size(), job.out, chunk * piece,
                                     length(chunk, job.out.bytes()), job.dtype, job.op,
                                     job.postscale);
                });
}

PhaseTimes ShmCommunicator::sendrecv(const SendrecvJob& job) {
  const auto self = static_cast<std::size_t>(index_);
  const auto partner = static_cast<std::size_t>(job.partner);
  const auto length = [&](std::size_t chunk, std::size_t total) {
    const std::size_t begin = chunk * chunk_bytes_;
    return begin >= total ? 0 : std::min(chunk_bytes_, total - begin);
  };
  return stream((job.longest + chunk_bytes_ - 1) / chunk_bytes_,
                [&](std::size_t chunk, std::uint64_t serial) {
                  const std::size_t bytes = length(chunk, job.in.bytes());
                  job.in.copy_out(chunk * chunk_bytes_, bytes, window(self, serial));
                },
                [&](std::size_t chunk, std::uint64_t serial) {
                  const std::size_t bytes = length(chunk, job.out.bytes());
                  job.out.copy_in(chunk * chunk_bytes_, bytes, window(partner, serial));
                });
}

const char* ShmCommunicator::activity(OpKind kind) const {
  switch (kind) {
    case OpKind::kAllreduce:
      return "SHM_ALLREDUCE";
    case OpKind::kAllgather:
      return "SHM_ALLGATHER";
    case OpKind::kBroadcast:
      return "SHM_BCAST";
    case OpKind::kAlltoall:
      return "SHM_ALLTOALL";
    case OpKind::kReducescatter:
      return "SHM_REDUCESCATTER";
    case OpKind::kBarrier:
      return "SHM_BARRIER";
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  return "SHM";
}

std::unique_ptr<Communicator> make_shm_communicator(const CommunicatorSpec& spec) {
  auto communicator = std::make_unique<ShmCommunicator>(spec.session.arena, spec.members,
                                                        spec.index, spec.number, spec.patience);
  communicator->set_window_shared(!spec.only_one);
  return communicator;
}

}  // namespace hvdtune
