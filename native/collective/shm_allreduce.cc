#include <algorithm>
#include <array>

#include "base/check.h"
#include "collective/shm_communicator.h"
#include "collective/shm_reduce.h"

namespace hvdtune {
namespace {

/// Whether a member's own data are read from its tensors when they are reduced, not from its
/// window. Scaled data exist there only; and where a tensor is in the batch twice, in place, the
/// first result overwrites what the second one is to be made of.
bool reads_own_tensor(const AllreduceJob& job) {
  return job.prescale == 1.0 && !job.out.overlaps();
}

}  // namespace

PhaseTimes ShmCommunicator::allreduce(const AllreduceJob& job) {
  HVD_CHECK(job.in.bytes() == job.out.bytes());
  if (job.in.empty()) return {monotonic_now(), monotonic_now()};
  if (others() == 0) return allreduce_alone(job);
  const PhaseTimes times =
      job.in.bytes() <= one_shot_limit_ ? allreduce_one_shot(job) : allreduce_streamed(job);
  end_operation();
  return times;
}

PhaseTimes ShmCommunicator::allreduce_alone(const AllreduceJob& job) {
  copy_segments(job.in, job.out, job.in.bytes());
  for (const double scale : {job.prescale, job.postscale}) {
    if (scale != 1.0) scale_segments(job.out, job.dtype, scale);
  }
  return {monotonic_now(), monotonic_now()};
}

/// Small messages: everybody publishes all of its data and reduces all of it for itself. One
/// barrier instead of two; the redundant arithmetic is cheaper than a second synchronisation.
/// What this member has published it does not read again: its peers read it just then, and a line
/// that two CPUs read costs more to write the next time.
PhaseTimes ShmCommunicator::allreduce_one_shot(const AllreduceJob& job) {
  PhaseTimes times;
  const std::size_t bytes = job.in.bytes();
  const CopyKind writing = distance_.writing(bytes);
  const std::uint64_t chunk = window_.open(bytes);
  std::byte* mine = window(static_cast<std::size_t>(index_), chunk);
  pack(job.in, 0, bytes, mine, job.dtype, job.prescale, writing);
  order_copies(writing);
  barrier_.arrive();
  times.packed = monotonic_now();
  barrier_.wait();
  times.unpacking = monotonic_now();
  std::array<const std::byte*, kMaxRanksPerHost> sources;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    sources[member] = window(member, chunk);
  }
  if (reads_own_tensor(job)) {
    reduce_with_own_to_segments(sources.data(), members_.size(), static_cast<std::size_t>(index_),
                                job.in, job.out, 0, bytes, job.dtype, job.op, job.postscale);
  } else {
    reduce_to_segments(sources.data(), members_.size(), job.out, 0, bytes, job.dtype, job.op,
                       job.postscale);
  }
  return times;
}

/// A message longer than that, chunk by chunk (shm_communicator.h).
class ShmCommunicator::StreamedAllreduce {
 public:
  StreamedAllreduce(ShmCommunicator& communicator, const AllreduceJob& job)
      : c_(communicator),
        job_(job),
        members_(c_.members_.size()),
        self_(static_cast<std::size_t>(c_.index_)),
        total_(job.in.bytes()),
        direct_(reads_own_tensor(job)) {}

  PhaseTimes run() {
    PhaseTimes times;
    const std::size_t chunks = (total_ + c_.chunk_bytes_ - 1) / c_.chunk_bytes_;
    pack_chunk(0);
    arrive();
    times.packed = monotonic_now();
    for (std::size_t step = 1; step <= chunks + 1; ++step) {
      if (step < chunks) pack_chunk(step);
      c_.barrier_.wait();
      if (step == chunks + 1) times.unpacking = monotonic_now();
      if (step <= chunks) reduce_chunk(step - 1);
      if (step >= 2) unpack_chunk(step - 2);
      if (step <= chunks) arrive();
    }
    return times;
  }

 private:
  [[nodiscard]] std::size_t bytes_of(std::size_t chunk) const {
    return std::min(c_.chunk_bytes_, total_ - chunk * c_.chunk_bytes_);
  }
  [[nodiscard]] Part part_of(std::size_t chunk, std::size_t member) const {
    return chunk_part(chunk * c_.chunk_bytes_, bytes_of(chunk), member, members_);
  }
  [[nodiscard]] std::byte* window(std::size_t member, std::size_t chunk) const {
    return c_.window(member, first_ + chunk);
  }

  void arrive() {
    order_copies(writing_);
    c_.barrier_.arrive();
  }

  void pack_chunk(std::size_t chunk) {
    writing_ = c_.distance_.writing(bytes_of(chunk));
    const std::uint64_t serial = c_.window_.open(bytes_of(chunk));
    if (chunk == 0) first_ = serial;
    std::byte* mine = window(self_, chunk);
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == self_ && direct_) continue;
      const Part part = part_of(chunk, member);
      pack(job_.in, part.begin, part.bytes, mine + part.in_chunk, job_.dtype, job_.prescale,
           writing_);
    }
  }

  /// Into the output first, then published from there: see allreduce_one_shot().
  void reduce_chunk(std::size_t chunk) {
    const Part part = part_of(chunk, self_);
    std::array<const std::byte*, kMaxRanksPerHost> sources;
    for (std::size_t member = 0; member < members_; ++member) {
      sources[member] = window(member, chunk) + part.in_chunk;
    }
    std::byte* result = window(self_, chunk) + part.in_chunk;
    for (std::size_t done = 0; done < part.bytes; done += kTile) {
      const std::size_t begin = part.begin + done;
      const std::size_t bytes = std::min(kTile, part.bytes - done);
      if (direct_) {
        reduce_with_own_to_segments(sources.data(), members_, self_, job_.in, job_.out, begin,
                                    bytes, job_.dtype, job_.op, job_.postscale);
      } else {
        reduce_to_segments(sources.data(), members_, job_.out, begin, bytes, job_.dtype, job_.op,
                           job_.postscale);
      }
      pack(job_.out, begin, bytes, result + done, job_.dtype, 1.0, writing_);
      for (std::size_t member = 0; member < members_; ++member) sources[member] += bytes;
    }
  }

  /// The own part is in place already. Members read different windows.
  void unpack_chunk(std::size_t chunk) {
    for (std::size_t turn = 1; turn < members_; ++turn) {
      const std::size_t member = (self_ + turn) % members_;
      const Part part = part_of(chunk, member);
      job_.out.copy_in(part.begin, part.bytes, window(member, chunk) + part.in_chunk);
    }
  }

  ShmCommunicator& c_;
  const AllreduceJob& job_;
  std::size_t members_;
  std::size_t self_;
  std::size_t total_;
  bool direct_;                           // see reads_own_tensor()
  CopyKind writing_ = CopyKind::kCached;  // from one arrival to the next
  std::uint64_t first_ = 0;
};

PhaseTimes ShmCommunicator::allreduce_streamed(const AllreduceJob& job) {
  return StreamedAllreduce(*this, job).run();
}

}  // namespace hvdtune
