#include "transport/arena/peer_heaps.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace hvdtune {
namespace {

// Mappings grow by this much, or by the need if that is more.
constexpr std::uint64_t kStep = 64 << 20;

}  // namespace

PeerHeaps::PeerHeaps(std::shared_ptr<HeapFile> file)
    : file_(std::move(file)), regions_(static_cast<std::size_t>(file_->ranks())) {}

PeerHeaps::~PeerHeaps() {
  for (const Region& region : regions_) {
    if (region.base != nullptr) munmap(region.base, region.bytes);
  }
}

void PeerHeaps::reach(int rank, std::uint64_t offset, std::uint64_t bytes) {
  Region& region = regions_[static_cast<std::size_t>(rank)];
  const std::uint64_t limit = file_->region_bytes();
  if (offset > limit || bytes > limit - offset) {
    throw Error(ErrorKind::kAborted, "rank " + std::to_string(rank) +
                                         " has a tensor outside its part of the shared memory");
  }
  const std::uint64_t end = offset + bytes;
  if (end <= region.bytes) return;
  const std::uint64_t wanted = std::min((end + kStep - 1) / kStep * kStep, limit);
  void* mapped = region.base == nullptr
                     ? mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            file_->fd(), static_cast<off_t>(file_->region_start(rank)))
                     : mremap(region.base, region.bytes, wanted, MREMAP_MAYMOVE);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorKind::kAborted, "cannot map the tensors of rank " + std::to_string(rank) +
                                         " in shared memory: " + std::strerror(errno));
  }
  region = {static_cast<std::byte*>(mapped), wanted};
  madvise(mapped, wanted, MADV_HUGEPAGE);
}

}  // namespace hvdtune
