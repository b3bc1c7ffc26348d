#include <algorithm>
#include <array>

#include "base/check.h"
#include "collective/shm_communicator.h"
#include "collective/shm_reduce.h"

namespace hvdtune {

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
PhaseTimes ShmCommunicator::allreduce_one_shot(const AllreduceJob& job) {
  PhaseTimes times;
  const std::size_t bytes = job.in.bytes();
  const std::uint64_t chunk = window_.open(bytes);
  std::byte* mine = window(static_cast<std::size_t>(index_), chunk);
  pack(job.in, 0, bytes, mine, job.dtype, job.prescale);
  barrier_.arrive();
  times.packed = monotonic_now();
  barrier_.wait();
  times.unpacking = monotonic_now();
  std::array<const std::byte*, kMaxRanksPerHost> sources;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    sources[member] = window(member, chunk);
  }
  reduce_to_segments(sources.data(), members_.size(), job.out, 0, bytes, job.dtype, job.op,
                     job.postscale);
  return times;
}

PhaseTimes ShmCommunicator::allreduce_streamed(const AllreduceJob& job) {
  PhaseTimes times;
  const std::size_t members = members_.size();
  const auto self = static_cast<std::size_t>(index_);
  const std::size_t total = job.in.bytes();
  const std::size_t chunks = (total + chunk_bytes_ - 1) / chunk_bytes_;
  const bool direct = job.prescale == 1.0;  // scaled data exist only in the window

  const auto part_of = [&](std::size_t chunk, std::size_t member) {
    return chunk_part(chunk * chunk_bytes_, std::min(chunk_bytes_, total - chunk * chunk_bytes_),
                      member, members);
  };
  std::uint64_t first = 0;
  const auto pack_chunk = [&](std::size_t chunk) {
    const std::uint64_t serial = window_.open(std::min(chunk_bytes_, total - chunk * chunk_bytes_));
    if (chunk == 0) first = serial;
    std::byte* mine = window(self, serial);
    for (std::size_t member = 0; member < members; ++member) {
      if (member == self && direct) continue;
      const Part part = part_of(chunk, member);
      pack(job.in, part.begin, part.bytes, mine + part.in_chunk, job.dtype, job.prescale);
    }
  };
  const auto reduce_chunk = [&](std::size_t chunk) {
    const Part part = part_of(chunk, self);
    std::array<const std::byte*, kMaxRanksPerHost> sources;
    for (std::size_t member = 0; member < members; ++member) {
      sources[member] = window(member, first + chunk) + part.in_chunk;
    }
    std::byte* result = window(self, first + chunk) + part.in_chunk;
    if (direct) {
      reduce_with_own(sources.data(), members, self, job.in, part.begin, part.bytes, result,
                      job.dtype, job.op, job.postscale);
    } else {
      reduce_block(sources.data(), members, result, part.bytes, job.dtype, job.op, job.postscale);
    }
  };
  const auto unpack_chunk = [&](std::size_t chunk) {
    // Start with the own part, still in cache, and go round: members read different windows.
    for (std::size_t turn = 0; turn < members; ++turn) {
      const std::size_t member = (self + turn) % members;
      const Part part = part_of(chunk, member);
      job.out.copy_in(part.begin, part.bytes, window(member, first + chunk) + part.in_chunk);
    }
  };

  pack_chunk(0);
  barrier_.arrive();
  times.packed = monotonic_now();
  for (std::size_t step = 1; step <= chunks + 1; ++step) {
    if (step < chunks) pack_chunk(step);
    barrier_.wait();
    if (step == chunks + 1) times.unpacking = monotonic_now();
    if (step <= chunks) reduce_chunk(step - 1);
    if (step >= 2) unpack_chunk(step - 2);
    if (step <= chunks) barrier_.arrive();
  }
  return times;
}

}  // namespace hvdtune
