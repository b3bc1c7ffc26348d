#include "transport/arena/heap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"

namespace hvdtune {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;
// Largest size of the whole file: far below the limits of files and address spaces.
constexpr std::uint64_t kMaxFile = 16ULL << 40;

constexpr std::uint64_t grain_up(std::uint64_t bytes) {
  return (bytes + kHeapGrain - 1) / kHeapGrain * kHeapGrain;
}

std::uint64_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return 64 * kGiB;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
}

/// The limit must be checked beforehand: exceeding it raises a signal.
bool may_be_as_large(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return true;
  return limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

std::uint64_t front_bytes(int ranks) {
  const std::uint64_t places = std::uint64_t{kMaxSlots} * sizeof(std::uint64_t);
  return grain_up(sizeof(WorkCell) * kMaxProcessSets + places * static_cast<std::uint64_t>(ranks));
}

std::byte* map_front(int fd, int ranks) {
  void* mapped =
      mmap(nullptr, front_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

}  // namespace

std::shared_ptr<HeapFile> HeapFile::create(int ranks) {
  HVD_CHECK(ranks >= 1 && ranks <= kMaxRanks);
  const auto count = static_cast<std::uint64_t>(ranks);
  const std::uint64_t region =
      grain_up(std::min(std::max(machine_memory(), kGiB), kMaxFile / count));
  const std::uint64_t size = front_bytes(ranks) + count * region;
  if (!may_be_as_large(size)) return nullptr;
  const int fd = memfd_create("hvdtune-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return nullptr;
  std::byte* front = nullptr;
  if (ftruncate(fd, static_cast<off_t>(size)) == 0) front = map_front(fd, ranks);
  if (front == nullptr) {
    close(fd);
    return nullptr;
  }
  // Holes may still be punched, which gives memory back; the size is final.
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return std::shared_ptr<HeapFile>(new HeapFile(fd, ranks, region, front));
}

std::shared_ptr<HeapFile> HeapFile::attach(int fd, int ranks) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  struct stat state{};
  std::byte* front = nullptr;
  if (own >= 0 && fstat(own, &state) == 0) front = map_front(own, ranks);
  if (front == nullptr) {
    const std::string why = std::strerror(errno);
    if (own >= 0) close(own);
    throw Error(ErrorKind::kAborted, "cannot map this host's memory for tensors: " + why);
  }
  const auto regions = static_cast<std::uint64_t>(state.st_size) - front_bytes(ranks);
  return std::shared_ptr<HeapFile>(
      new HeapFile(own, ranks, regions / static_cast<std::uint64_t>(ranks), front));
}

HeapFile::HeapFile(int fd, int ranks, std::uint64_t region_bytes, std::byte* front)
    : fd_(fd), ranks_(ranks), region_bytes_(region_bytes), front_(front) {}

HeapFile::~HeapFile() {
  munmap(front_, front_bytes(ranks_));
  close(fd_);
}

std::uint64_t HeapFile::region_start(int rank) const {
  return front_bytes(ranks_) + static_cast<std::uint64_t>(rank) * region_bytes_;
}

// A new memfd reads as zeros, which is the initial state of everything in the front.

WorkCell& HeapFile::work_cell(int number) {
  HVD_CHECK(number >= 0 && number < kMaxProcessSets);
  return reinterpret_cast<WorkCell*>(front_)[number];
}

void HeapFile::reset_work_cell(int number) {
  WorkCell& cell = work_cell(number);
  cell.claim.store(0, std::memory_order_seq_cst);
  cell.finished.store(0, std::memory_order_seq_cst);
  for (WorkCell::Progress& member : cell.members) member.value.store(0, std::memory_order_seq_cst);
}

std::atomic<std::uint64_t>& HeapFile::place(int rank, std::uint32_t slot) {
  HVD_CHECK(rank >= 0 && rank < ranks_ && slot < kMaxSlots);
  auto* places =
      reinterpret_cast<std::atomic<std::uint64_t>*>(front_ + sizeof(WorkCell) * kMaxProcessSets);
  return places[std::size_t{kMaxSlots} * static_cast<std::size_t>(rank) + slot];
}

}  // namespace hvdtune
