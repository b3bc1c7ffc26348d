#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "collective/kernels/reduction.h"
#include "collective/shm/shm_communicator.h"

namespace hvdtune {
namespace {

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// Decisions that depend on the layout of a job's tensors in memory.
struct Layout {
  explicit Layout(const AllreduceJob& job)
      : twice(job.out.overlaps()),
        reads_own(job.prescale == 1.0 && !twice),
        message(twice ? 0 : job.in.bytes()) {}

  /// Whether a tensor is in the batch twice.
  bool twice;
  /// Whether a reduction reads a member's own data from its tensors, not from its window. False for
  /// scaled data, which exists only in the window, and for a tensor that is in the batch twice, in
  /// place: its first result overwrites the input of the second.
  bool reads_own;
  /// Bytes of the message, for HelperPool::share; 0 if two threads would write to the same place.
  std::size_t message;
};

/// Reduces [begin, begin + bytes) of the message into the output; `sources`: addresses of the
/// members' data for it, in member order.
void reduce_to_output(const AllreduceJob& job, const Layout& layout,
                      const std::byte* const* sources, std::size_t members, std::size_t self,
                      std::size_t begin, std::size_t bytes) {
  if (layout.reads_own) {
    reduce_with_own_to_segments(sources, members, self, job.in, job.out, begin, bytes, job.dtype,
                                job.op, job.postscale);
  } else {
    reduce_to_segments(sources, members, job.out, begin, bytes, job.dtype, job.op, job.postscale);
  }
}

}  // namespace

PhaseTimes ShmCommunicator::allreduce(const AllreduceJob& job) {
  HVD_CHECK(job.in.bytes() == job.out.bytes());
  if (job.in.empty()) return {monotonic_now(), monotonic_now()};
  if (others() == 0) {
    reduce_alone(job.in, job.out, job.dtype, job.prescale, job.postscale);
    return {monotonic_now(), monotonic_now()};
  }
  const PhaseTimes times =
      job.in.bytes() <= one_shot_limit_ ? allreduce_one_shot(job) : allreduce_streamed(job);
  end_operation();
  return times;
}

/// Small messages: every member publishes all its data and reduces everything for itself. This
/// takes one barrier instead of two; the redundant arithmetic is cheaper than a second
/// synchronisation. A member does not read its own published data: its peers read it at that time,
/// and a line that two CPUs read costs more to write the next time.
PhaseTimes ShmCommunicator::allreduce_one_shot(const AllreduceJob& job) {
  PhaseTimes times;
  const Layout layout(job);
  const auto self = static_cast<std::size_t>(index_);
  const std::size_t bytes = job.in.bytes();
  const CopyKind writing = distance_.writing(bytes);
  const std::uint64_t chunk = window_.open(bytes);
  std::byte* mine = window(self, chunk);
  helpers_->share(layout.message, bytes, [&](std::size_t begin, std::size_t end) {
    pack(job.in, begin, end - begin, mine + begin, job.dtype, job.prescale, writing);
  });
  order_copies(writing);
  barrier_.arrive();
  times.packed = monotonic_now();
  barrier_.wait();
  times.unpacking = monotonic_now();
  helpers_->share(layout.message, bytes, [&](std::size_t begin, std::size_t end) {
    std::array<const std::byte*, kMaxRanksPerHost> sources;
    for (std::size_t member = 0; member < members_.size(); ++member) {
      sources[member] = window(member, chunk) + begin;
    }
    reduce_to_output(job, layout, sources.data(), members_.size(), self, begin, end - begin);
  });
  return times;
}

/// A longer message, chunk by chunk (shm_communicator.h).
class ShmCommunicator::StreamedAllreduce {
 public:
  StreamedAllreduce(ShmCommunicator& communicator, const AllreduceJob& job, const Layout& layout)
      : c_(communicator),
        job_(job),
        members_(c_.members_.size()),
        self_(static_cast<std::size_t>(c_.index_)),
        total_(job.in.bytes()),
        layout_(layout) {}

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
      reduce_and_unpack(step, chunks);
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

  /// Bytes of the parts of a chunk that this member packs, or unpacks, if each part begins at a new
  /// cache line.
  [[nodiscard]] std::size_t parts_bytes(std::size_t chunk, bool with_own) const {
    const std::size_t all = whole_lines(bytes_of(chunk));
    return with_own ? all : all - whole_lines(part_of(chunk, self_).bytes);
  }

  /// Calls visit(member, part) for [begin, end) of these parts, the next member's first and this
  /// one's own last, so that members read different windows at a time.
  template <typename Visit>
  void for_parts(std::size_t chunk, std::size_t begin, std::size_t end, Visit&& visit) const {
    std::size_t at = 0;
    for (std::size_t turn = 1; turn <= members_ && at < end; ++turn) {
      const std::size_t member = (self_ + turn) % members_;
      const Part part = part_of(chunk, member);
      const std::size_t from = std::max(begin, at);
      const std::size_t to = std::min(end, at + part.bytes);
      if (from < to) {
        visit(member, Part{part.begin + from - at, part.in_chunk + from - at, to - from});
      }
      at += whole_lines(part.bytes);
    }
  }

  void pack_chunk(std::size_t chunk) {
    writing_ = c_.distance_.writing(bytes_of(chunk));
    const std::uint64_t serial = c_.window_.open(bytes_of(chunk));
    if (chunk == 0) first_ = serial;
    std::byte* mine = window(self_, chunk);
    const auto pack_range = [&](std::size_t begin, std::size_t end) {
      for_parts(chunk, begin, end, [&](std::size_t, const Part& part) {
        pack(job_.in, part.begin, part.bytes, mine + part.in_chunk, job_.dtype, job_.prescale,
             writing_);
      });
    };
    c_.helpers_->share(layout_.message, parts_bytes(chunk, !layout_.reads_own), pack_range);
  }

  /// The work of a step after the barrier: reduces a chunk, and unpacks the previous one. Both are
  /// handed to the helpers together.
  void reduce_and_unpack(std::size_t step, std::size_t chunks) {
    const std::size_t reduced = step <= chunks ? whole_lines(part_of(step - 1, self_).bytes) : 0;
    const std::size_t unpacked = step >= 2 ? parts_bytes(step - 2, false) : 0;
    const auto range = [&](std::size_t begin, std::size_t end) {
      if (begin < reduced) reduce_part(step - 1, begin, std::min(end, reduced));
      if (end > reduced) unpack_parts(step - 2, std::max(begin, reduced) - reduced, end - reduced);
    };
    c_.helpers_->share(layout_.message, reduced + unpacked, range);
  }

  /// Reduces [begin, end) of this member's own part into the output, then publishes it from there:
  /// see allreduce_one_shot().
  void reduce_part(std::size_t chunk, std::size_t begin, std::size_t end) const {
    const Part part = part_of(chunk, self_);
    end = std::min(end, part.bytes);
    std::byte* result = window(self_, chunk) + part.in_chunk;
    std::array<const std::byte*, kMaxRanksPerHost> sources;
    for (std::size_t member = 0; member < members_; ++member) {
      sources[member] = window(member, chunk) + part.in_chunk + begin;
    }
    for (std::size_t done = begin; done < end; done += kTile) {
      const std::size_t at = part.begin + done;
      const std::size_t bytes = std::min(kTile, end - done);
      reduce_to_output(job_, layout_, sources.data(), members_, self_, at, bytes);
      pack(job_.out, at, bytes, result + done, job_.dtype, 1.0, writing_);
      for (std::size_t member = 0; member < members_; ++member) sources[member] += bytes;
    }
  }

  /// This member's own part is in place already.
  void unpack_parts(std::size_t chunk, std::size_t begin, std::size_t end) const {
    for_parts(chunk, begin, end, [&](std::size_t member, const Part& part) {
      job_.out.copy_in(part.begin, part.bytes, window(member, chunk) + part.in_chunk);
    });
  }

  ShmCommunicator& c_;
  const AllreduceJob& job_;
  std::size_t members_;
  std::size_t self_;
  std::size_t total_;
  Layout layout_;
  CopyKind writing_ = CopyKind::kCached;  // from one arrival to the next
  std::uint64_t first_ = 0;
};

PhaseTimes ShmCommunicator::allreduce_streamed(const AllreduceJob& job) {
  const Layout layout(job);
  if (!layout.twice || job.in.bytes() <= chunk_bytes_) {
    return StreamedAllreduce(*this, job, layout).run();
  }
  // In place, the result of a chunk would overwrite the tensor's second input in a later one.
  std::vector<std::byte> copy(job.in.bytes());
  job.in.copy_out(0, copy.size(), copy.data());
  SegmentList in;
  in.add(copy.data(), copy.size());
  const AllreduceJob copied{in, job.out, job.dtype, job.op, job.prescale, job.postscale};
  return StreamedAllreduce(*this, copied, layout).run();
}

}  // namespace hvdtune
