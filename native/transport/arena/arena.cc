#include "transport/arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "base/utf8.h"

namespace hvdtune {
namespace {

constexpr std::uint64_t kMagic = 0x68766474756e6531;  // "hvdtune1"
constexpr std::size_t kAnnounceRing = 1 << 20;
constexpr std::size_t kScheduleRing = 2 << 20;

enum AbortState : std::uint32_t { kRunning = 0, kWriting = 1, kAborted = 2 };

constexpr std::size_t page_up(std::size_t bytes) { return (bytes + 4095) & ~std::size_t{4095}; }

}  // namespace

struct Arena::Header {
  std::uint64_t magic = kMagic;
  std::uint32_t ranks = 0;
  std::int32_t cpus = 0;
  std::int32_t local_ranks = 0;
  alignas(64) std::atomic<std::uint32_t> abort_state{kRunning};
  char abort_text[kAbortTextBytes] = {};
  alignas(64) std::atomic<std::uint32_t> collecting{0};
  std::atomic<std::uint32_t> joined{0};
  std::atomic<std::uint32_t> watched{0};
  std::atomic<std::uint32_t> ended{0};
  std::atomic<std::uint32_t> stall_checks{0};
  std::atomic<std::uint32_t> silence_reporter{0};
  std::atomic<std::uint64_t> end_position{0};
  std::atomic<std::uint32_t> recording_decided{0};
  std::atomic<std::int32_t> recording{0};
  std::atomic<std::uint32_t> recording_failed{0};
  alignas(64) std::atomic<std::uint64_t> schedule_written{0};
  struct alignas(64) Time {
    std::atomic<std::int64_t> nanos{0};
  };
  Time apart[kMaxRanks];
  Doorbell doorbells[kMaxRanks];
  Doorbell bridge_bell;
  ReadCursor cursors[kMaxRanks];
  RingHead announce_heads[kMaxRanks];
  BarrierCell barriers[kMaxProcessSets];
  DistanceCell distances[kMaxProcessSets];
  SlotRound slot_rounds[kMaxSlots];
  Time seen_waiting[kMaxRanks];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

std::size_t rings_offset(std::size_t header_bytes) { return page_up(header_bytes); }

std::size_t direct_offset(std::size_t header_bytes, int ranks) {
  return page_up(rings_offset(header_bytes) + kScheduleRing +
                 static_cast<std::size_t>(ranks) * kAnnounceRing);
}

/// Space for small tensors, then for larger ones. No larger one starts at the same offset in a page
/// as its neighbours: ranks read them together, and lines with equal offsets displace each other
/// from caches.
constexpr std::size_t kDirectStride = kDirectBytes + kDirectLine;

std::size_t large_direct_offset(std::size_t header_bytes, int ranks) {
  return page_up(direct_offset(header_bytes, ranks) +
                 2 * kDirectSlots * static_cast<std::size_t>(ranks) * kDirectLine);
}

std::size_t staged_offset(std::size_t header_bytes, int ranks) {
  return page_up(large_direct_offset(header_bytes, ranks) +
                 2 * kDirectSlots * static_cast<std::size_t>(ranks) * kDirectStride);
}

/// One cache line each: ranks write them all the time.
std::size_t shared_work_offset(std::size_t header_bytes, int ranks) {
  return page_up(staged_offset(header_bytes, ranks) +
                 kDirectSlots * static_cast<std::size_t>(ranks) * sizeof(StagedTensor));
}

std::size_t stage_offset(std::size_t header_bytes, int ranks) {
  return page_up(shared_work_offset(header_bytes, ranks) + kDirectSlots * kDirectLine);
}

std::size_t windows_offset(std::size_t header_bytes, int ranks) {
  return stage_offset(header_bytes, ranks) + static_cast<std::size_t>(ranks) * kStageBytes;
}

std::size_t arena_bytes(std::size_t header_bytes, int ranks) {
  return windows_offset(header_bytes, ranks) + static_cast<std::size_t>(ranks) * kWindowBytes;
}

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorKind::kAborted, std::string("cannot ") + what +
                                       " the shared memory of this host: " + std::strerror(errno));
}

}  // namespace

std::shared_ptr<Arena> Arena::create(int ranks, int cpus, int local_ranks) {
  const int fd = memfd_create("hvdtune", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail("create");
  if (ftruncate(fd, static_cast<off_t>(arena_bytes(sizeof(Header), ranks))) != 0) {
    close(fd);
    fail("size");
  }
  // The size is final: a peer cannot shrink the arena while others use it.
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::shared_ptr<Arena> arena(new Arena(fd, ranks, true));
  auto* header = reinterpret_cast<Header*>(arena->base_);
  header->cpus = cpus;
  header->local_ranks = local_ranks > 0 ? local_ranks : ranks;
  return arena;
}

std::shared_ptr<Arena> Arena::attach(int fd, int ranks) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) fail("open");
  return std::shared_ptr<Arena>(new Arena(own, ranks, false));
}

Arena::Arena(int fd, int ranks, bool owner)
    : fd_(fd), ranks_(ranks), bytes_(arena_bytes(sizeof(Header), ranks)) {
  HVD_CHECK(ranks >= 1 && ranks <= kMaxRanks);
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) {
    close(fd_);
    fail("map");
  }
  base_ = static_cast<std::byte*>(mapped);
  madvise(base_, bytes_, MADV_HUGEPAGE);  // if the administrator allows it for shared memory
  if (owner) {
    // A new memfd reads as zeros, which is the initial state of the large arrays; constructing the
    // header would touch every page of them.
    auto* header = reinterpret_cast<Header*>(base_);
    header->magic = kMagic;
    header->ranks = static_cast<std::uint32_t>(ranks);
  } else if (reinterpret_cast<Header*>(base_)->magic != kMagic) {
    munmap(base_, bytes_);
    close(fd_);
    throw Error(ErrorKind::kAborted, "the shared memory handed over by rank 0 is not an arena");
  }
}

Arena::~Arena() {
  munmap(base_, bytes_);
  close(fd_);
}

Doorbell& Arena::doorbell(int rank) { return reinterpret_cast<Header*>(base_)->doorbells[rank]; }

Doorbell& Arena::bridge_bell() { return reinterpret_cast<Header*>(base_)->bridge_bell; }

MessageRing Arena::announcements(int rank) {
  std::byte* data = base_ + rings_offset(sizeof(Header)) + kScheduleRing +
                    static_cast<std::size_t>(rank) * kAnnounceRing;
  return {&reinterpret_cast<Header*>(base_)->announce_heads[rank], data, kAnnounceRing};
}

BroadcastRing Arena::schedule() {
  auto* header = reinterpret_cast<Header*>(base_);
  return {&header->schedule_written, header->cursors, ranks_, base_ + rings_offset(sizeof(Header)),
          kScheduleRing};
}

BarrierCell& Arena::barrier(int index) {
  HVD_CHECK(index >= 0 && index < kMaxProcessSets);
  return reinterpret_cast<Header*>(base_)->barriers[index];
}

DistanceCell& Arena::distance(int index) {
  HVD_CHECK(index >= 0 && index < kMaxProcessSets);
  return reinterpret_cast<Header*>(base_)->distances[index];
}

void Arena::reset_cells(int index) {
  BarrierCell& cell = barrier(index);
  cell.arrived.store(0, std::memory_order_seq_cst);
  cell.generation.store(0, std::memory_order_seq_cst);
  for (BarrierCell::Arrival& arrival : cell.arrivals) arrival.generation.store(0);
  DistanceCell& far = distance(index);
  far.probe.store(0, std::memory_order_seq_cst);
  far.far.store(0, std::memory_order_seq_cst);
  far.probing = far.seemed_far = false;
  far.measured = 0;
  for (DistanceCell::Reader& reader : far.readers) reader.probe.store(0);
}

std::byte* Arena::window(int rank) {
  return base_ + windows_offset(sizeof(Header), ranks_) +
         static_cast<std::size_t>(rank) * kWindowBytes;
}

SlotRound& Arena::slot_round(std::uint32_t slot) {
  HVD_CHECK(slot < kMaxSlots);
  return reinterpret_cast<Header*>(base_)->slot_rounds[slot];
}

std::byte* Arena::direct_data(std::uint32_t slot, std::uint32_t round, int rank,
                              std::size_t bytes) {
  HVD_CHECK(slot < kDirectSlots && bytes <= kDirectBytes);
  const std::size_t line = (std::size_t{slot} * 2 + round % 2) * static_cast<std::size_t>(ranks_) +
                           static_cast<std::size_t>(rank);
  if (bytes <= kDirectLine) {
    return base_ + direct_offset(sizeof(Header), ranks_) + line * kDirectLine;
  }
  return base_ + large_direct_offset(sizeof(Header), ranks_) + line * kDirectStride;
}

StagedTensor& Arena::staged(std::uint32_t slot, int rank) {
  HVD_CHECK(slot < kDirectSlots);
  auto* all = reinterpret_cast<StagedTensor*>(base_ + staged_offset(sizeof(Header), ranks_));
  return all[std::size_t{slot} * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
}

SharedWork& Arena::shared_work(std::uint32_t slot) {
  HVD_CHECK(slot < kDirectSlots);
  return *reinterpret_cast<SharedWork*>(base_ + shared_work_offset(sizeof(Header), ranks_) +
                                        slot * kDirectLine);
}

std::byte* Arena::stage(int rank) {
  return base_ + stage_offset(sizeof(Header), ranks_) +
         static_cast<std::size_t>(rank) * kStageBytes;
}

std::atomic<std::uint32_t>& Arena::watched() { return reinterpret_cast<Header*>(base_)->watched; }

std::atomic<std::uint32_t>& Arena::stall_checks() {
  return reinterpret_cast<Header*>(base_)->stall_checks;
}

std::atomic<std::uint32_t>& Arena::silence_reporter() {
  return reinterpret_cast<Header*>(base_)->silence_reporter;
}

std::atomic<std::uint32_t>& Arena::collecting() {
  return reinterpret_cast<Header*>(base_)->collecting;
}

std::atomic<std::int64_t>& Arena::apart(int rank) {
  return reinterpret_cast<Header*>(base_)->apart[rank].nanos;
}

std::atomic<std::int64_t>& Arena::seen_waiting(int rank) {
  return reinterpret_cast<Header*>(base_)->seen_waiting[rank].nanos;
}

std::atomic<std::uint32_t>& Arena::recording_decided() {
  return reinterpret_cast<Header*>(base_)->recording_decided;
}

std::atomic<std::int32_t>& Arena::recording() {
  return reinterpret_cast<Header*>(base_)->recording;
}

std::atomic<std::uint32_t>& Arena::recording_failed() {
  return reinterpret_cast<Header*>(base_)->recording_failed;
}

std::atomic<std::uint32_t>& Arena::joined() { return reinterpret_cast<Header*>(base_)->joined; }

int Arena::cpus() const { return reinterpret_cast<const Header*>(base_)->cpus; }

int Arena::local_ranks() const { return reinterpret_cast<const Header*>(base_)->local_ranks; }

std::atomic<std::uint64_t>& Arena::end_position() {
  return reinterpret_cast<Header*>(base_)->end_position;
}

std::atomic<std::uint32_t>& Arena::ended() { return reinterpret_cast<Header*>(base_)->ended; }

void Arena::abort(const std::string& text) noexcept {
  auto* header = reinterpret_cast<Header*>(base_);
  std::uint32_t expected = kRunning;
  if (header->abort_state.compare_exchange_strong(expected, kWriting)) {
    const std::string_view whole = utf8_prefix(text, kAbortTextBytes - 1);
    std::memcpy(header->abort_text, whole.data(), whole.size());
    header->abort_text[whole.size()] = '\0';
    header->abort_state.store(kAborted, std::memory_order_seq_cst);
  }
  for (int rank = 0; rank < ranks_; ++rank) header->doorbells[rank].wake_all();
  header->bridge_bell.wake_all();
  for (BarrierCell& cell : header->barriers) {
    // The generation does not change: a polling waiter must not mistake the wake-up for an open
    // gate. A sleeper that misses the wake-up looks again after its slice (see ShmBarrier::wait).
    if (cell.sleepers.load(std::memory_order_seq_cst) != 0) {
      futex_wake(&cell.generation, kWakeAll);
    }
  }
}

bool Arena::aborted() const {
  return reinterpret_cast<const Header*>(base_)->abort_state.load(std::memory_order_seq_cst) ==
         kAborted;
}

Status Arena::abort_status() const {
  if (!aborted()) return {};
  return {ErrorKind::kAborted, reinterpret_cast<const Header*>(base_)->abort_text};
}

}  // namespace hvdtune
