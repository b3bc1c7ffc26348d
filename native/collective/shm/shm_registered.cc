#include "collective/shm/shm_registered.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/threads/futex.h"
#include "collective/kernels/kernels.h"
#include "collective/kernels/reduction.h"

namespace hvdtune {
namespace {

// Small enough for an even distribution and a short wait for the last block; large enough that the
// shared counter costs little.
constexpr std::size_t kMinBlock = 32 << 10;
constexpr std::size_t kMaxBlock = 256 << 10;
constexpr std::size_t kBlocksPerMember = 8;
// How long an abort can stay unnoticed if it happens between the last check and falling asleep.
constexpr Nanos kSleepSlice = 50 * kMillisecond;

std::uint64_t claim_word(std::uint32_t number, std::uint32_t block) {
  return std::uint64_t{number} << 32 | block;
}

std::size_t block_bytes(std::size_t total, std::size_t members) {
  const std::size_t share = total / (members * kBlocksPerMember);
  return std::clamp(share, kMinBlock, kMaxBlock) / kCacheLine * kCacheLine;
}

}  // namespace

ShmRegistered::ShmRegistered(std::shared_ptr<Arena> arena, std::shared_ptr<HeapFile> file,
                             std::vector<int> members, int index, int number, Patience patience,
                             std::shared_ptr<HelperPool> helpers)
    : arena_(std::move(arena)),
      file_(std::move(file)),
      peers_(file_),
      members_(std::move(members)),
      index_(static_cast<std::size_t>(index)),
      cell_(file_->work_cell(number)),
      distance_(arena_->distance(number), static_cast<int>(members_.size()), index),
      patience_(patience),
      helpers_(or_none(std::move(helpers))) {}

PhaseTimes ShmRegistered::allreduce(const RegisteredJob& job) {
  PhaseTimes times{monotonic_now(), 0};
  std::size_t total = 0;
  for (const RegisteredTensor& tensor : job.tensors) total += tensor.bytes;
  const std::size_t block = block_bytes(total, members_.size());
  const auto blocks = static_cast<std::uint32_t>((total + block - 1) / block);
  if (blocks > 0) {
    writing_ = distance_.writing(total);
    std::atomic<std::uint32_t>& progress = cell_.members[index_].value;
    progress.store(2 * number_ + 1, std::memory_order_relaxed);
    std::uint32_t finished = 0;
    while (const auto taken = take_block(blocks)) {
      // Only now: while a member holds a block, no member's tensors can move.
      if (finished == 0) lay_out(job);
      const std::size_t begin = std::size_t{*taken} * block;
      helpers_->share(total, std::min(block, total - begin), [&](std::size_t from, std::size_t to) {
        reduce_range(job, begin + from, begin + to);
      });
      ++finished;
    }
    order_copies(writing_);
    finish_blocks(finished, blocks);
    progress.store(2 * number_ + 2, std::memory_order_relaxed);
    wait_for_others();
    ++number_;
  }
  times.unpacking = monotonic_now();
  return times;
}

// ---- sharing the work ---------------------------------------------------------------------------

/// Whether the reduction has ended, perhaps long ago: the others need not wait for this member.
bool ShmRegistered::over() const {
  const auto current =
      static_cast<std::uint32_t>(cell_.claim.load(std::memory_order_acquire) >> 32);
  return static_cast<std::int32_t>(current - number_) > 0;
}

std::optional<std::uint32_t> ShmRegistered::take_block(std::uint32_t blocks) {
  std::uint64_t seen = cell_.claim.load(std::memory_order_acquire);
  while (true) {
    const auto next = static_cast<std::uint32_t>(seen);
    if (static_cast<std::uint32_t>(seen >> 32) != number_ || next >= blocks) return std::nullopt;
    if (cell_.claim.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
      return next;
    }
  }
}

/// Publishes this member's results. The member that finishes the last block ends the reduction.
void ShmRegistered::finish_blocks(std::uint32_t count, std::uint32_t blocks) {
  if (count == 0) return;
  if (cell_.finished.fetch_add(count, std::memory_order_acq_rel) + count < blocks) return;
  // No member reads it until the next reduction has begun.
  cell_.finished.store(0, std::memory_order_relaxed);
  cell_.claim.store(claim_word(number_ + 1, 0), std::memory_order_seq_cst);
  // Sleepers only notice changes: the member that ends the next reduction may get here first.
  cell_.ended.fetch_add(1, std::memory_order_seq_cst);
  if (cell_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&cell_.ended, kWakeAll);
}

void ShmRegistered::wait_for_others() {
  if (over()) return;
  if (!timed_) return wait_until_over();
  const Nanos began = monotonic_now();
  wait_until_over();
  waited_ += monotonic_now() - began;
}

void ShmRegistered::wait_until_over() {
  if (patience_.wait([this] { return over(); })) return;
  const Nanos began = monotonic_now();
  Nanos reported = began;
  cell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const std::uint32_t seen = cell_.ended.load(std::memory_order_seq_cst);
    if (over() || arena_->aborted()) break;
    const Nanos now = monotonic_now();
    if (now - reported >= absence_limit_) {
      report_missing(now - began);
      reported = now;
    }
    futex_wait(&cell_.ended, seen, now + kSleepSlice);
  }
  cell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  if (!over()) throw Error(arena_->abort_status());
}

void ShmRegistered::report_absence(Nanos limit, AbsenceReport report) {
  absence_limit_ = limit;
  report_ = std::move(report);
}

/// The lowest waiting member reports.
void ShmRegistered::report_missing(Nanos waited) const {
  std::vector<int> missing;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    const std::uint32_t at = cell_.members[member].value.load(std::memory_order_relaxed);
    if (at == 2 * number_ + 2 && member < index_) return;
    if (at == 2 * number_ + 1) missing.push_back(members_[member]);
  }
  if (!missing.empty()) report_(missing, waited);
}

// ---- positions of the tensors -------------------------------------------------------------------

/// The tensor's position in a member's region. Makes the tensor accessible.
std::uint64_t ShmRegistered::place_of(const RegisteredTensor& tensor, std::size_t member) {
  const int rank = members_[member];
  std::uint64_t place = file_->place(rank, tensor.slot).load(std::memory_order_relaxed);
  if (tensor.group > 1) {
    peers_.reach(rank, place, tensor.group * sizeof(std::uint64_t));
    auto* list = reinterpret_cast<std::atomic<std::uint64_t>*>(peers_.at(rank, place));
    place = list[tensor.index].load(std::memory_order_relaxed);
  }
  peers_.reach(rank, place, tensor.bytes);
  return place;
}

/// Puts the tensors into the order in which the first member has them in memory, and joins those
/// that are neighbours on every member: a bucket of gradients becomes one run.
void ShmRegistered::lay_out(const RegisteredJob& job) {
  const std::size_t members = members_.size();
  places_.clear();
  for (const RegisteredTensor& tensor : job.tensors) {
    for (std::size_t member = 0; member < members; ++member) {
      places_.push_back(tensor.bytes == 0 ? 0 : place_of(tensor, member));
    }
  }
  // Addresses do not change from here on: everything has been made accessible.
  order_.clear();
  for (std::size_t t = 0; t < job.tensors.size(); ++t) {
    if (job.tensors[t].bytes > 0) order_.push_back(t);
  }
  std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return places_[a * members] < places_[b * members];
  });
  runs_.clear();
  copies_.clear();
  std::size_t begin = 0;
  const std::uint64_t* last = nullptr;  // where the last run begins
  const std::byte* own = nullptr;       // its address here
  for (const std::size_t t : order_) {
    const std::uint64_t* places = places_.data() + t * members;
    const std::size_t bytes = job.tensors[t].bytes;
    // This member's blocks are separate mappings: neighbours in the region need not be neighbours
    // in memory.
    bool joins = last != nullptr && own + runs_.back().bytes == job.tensors[t].data;
    for (std::size_t member = 0; joins && member < members; ++member) {
      joins = last[member] + runs_.back().bytes == places[member];
    }
    if (joins) {
      runs_.back().bytes += bytes;
    } else {
      runs_.push_back({begin, bytes});
      for (std::size_t member = 0; member < members; ++member) {
        copies_.push_back(member == index_ ? job.tensors[t].data
                                           : peers_.at(members_[member], places[member]));
      }
      last = places;
      own = job.tensors[t].data;
    }
    begin += bytes;
  }
}

// ---- reducing -----------------------------------------------------------------------------------

void ShmRegistered::reduce_range(const RegisteredJob& job, std::size_t begin,
                                 std::size_t end) const {
  const std::size_t members = members_.size();
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](std::size_t at, const Run& r) { return at < r.begin; }) -
             1;
  while (begin < end) {
    const std::size_t skip = begin - run->begin;
    const std::size_t bytes = std::min(end - begin, run->bytes - skip);
    std::array<std::byte*, kMaxRanksPerHost> copies;
    const std::byte* const* starts =
        copies_.data() + static_cast<std::size_t>(run - runs_.begin()) * members;
    for (std::size_t member = 0; member < members; ++member) {
      copies[member] = const_cast<std::byte*>(starts[member]) + skip;
    }
    reduce_run(job, copies.data(), bytes);
    begin += bytes;
    ++run;
  }
}

void ShmRegistered::reduce_run(const RegisteredJob& job, std::byte* const* copies,
                               std::size_t bytes) const {
  std::array<std::byte*, kMaxRanksPerHost> at;
  for (std::size_t done = 0; done < bytes; done += kTile) {
    for (std::size_t member = 0; member < members_.size(); ++member) {
      at[member] = copies[member] + done;
    }
    reduce_tile(job, at.data(), std::min(kTile, bytes - done));
  }
}

void ShmRegistered::reduce_tile(const RegisteredJob& job, std::byte* const* copies,
                                std::size_t bytes) const {
  const std::size_t members = members_.size();
  std::byte* result = copies[index_];
  if (job.prescale != 1.0) {
    reduce_scaled(job, copies, bytes);
  } else {
    reduce_block(copies, members, result, bytes, job.dtype, job.op, job.postscale);
  }
  for (std::size_t member = 0; member < members; ++member) {
    if (member != index_) copy_unordered(copies[member], result, bytes, writing_);
  }
}

/// Like reduce_tile(), but into this member's own copy only. Its buffer is on the stack because
/// helpers, which must not throw, run it at the same time.
void ShmRegistered::reduce_scaled(const RegisteredJob& job, std::byte* const* copies,
                                  std::size_t bytes) const {
  constexpr std::size_t kScaled = 1 << 10;
  const std::size_t members = members_.size();
  const ScaleKernel scale = scale_kernel(job.dtype);
  alignas(kCacheLine) std::array<std::byte, kMaxRanksPerHost * kScaled> scaled;
  std::array<const std::byte*, kMaxRanksPerHost> sources;
  for (std::size_t done = 0; done < bytes; done += kScaled) {
    const std::size_t part = std::min(kScaled, bytes - done);
    for (std::size_t member = 0; member < members; ++member) {
      std::byte* own = scaled.data() + member * kScaled;
      scale(own, copies[member] + done, part / dtype_size(job.dtype), job.prescale);
      sources[member] = own;
    }
    reduce_block(sources.data(), members, copies[index_] + done, part, job.dtype, job.op,
                 job.postscale);
  }
}

}  // namespace hvdtune
