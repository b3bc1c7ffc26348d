#include "transport/arena/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"

namespace hvdtune {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif

constexpr std::uint64_t grain_up(std::uint64_t bytes) {
  return (bytes + kHeapGrain - 1) / kHeapGrain * kHeapGrain;
}

std::size_t page_up(std::size_t bytes) {
  return std::max<std::size_t>((bytes + 4095) & ~std::size_t{4095}, 4096);
}

[[noreturn]] void refuse(std::size_t bytes, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, "cannot place " + std::to_string(bytes) +
                                               " bytes in memory that the ranks share: " + why);
}

}  // namespace

SharedBlock::~SharedBlock() { heap_->release(*this); }

SharedHeap::SharedHeap(std::shared_ptr<HeapFile> file, int rank)
    : file_(std::move(file)), rank_(rank), pid_(getpid()) {
  free_[0] = file_->region_bytes();
}

/// First fit: low offsets are used first, so that the peers' mappings stay short. The caller holds
/// mutex_.
std::uint64_t SharedHeap::take(std::uint64_t bytes) {
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [bytes](const auto& range) { return range.second >= bytes; });
  if (found == free_.end()) refuse(bytes, "all of the machine's memory is taken");
  const auto [offset, length] = *found;
  free_.erase(found);
  if (length > bytes) free_[offset + bytes] = length - bytes;
  return offset;
}

/// The caller holds mutex_.
void SharedHeap::give_back(std::uint64_t offset, std::uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

std::shared_ptr<SharedBlock> SharedHeap::allocate(std::size_t bytes) {
  const std::size_t mapped = page_up(bytes);
  // Not held while the kernel works, which takes long: submissions call offset_of().
  std::unique_lock lock(mutex_);
  const std::uint64_t offset = take(grain_up(mapped));
  lock.unlock();
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      file_->fd(), static_cast<off_t>(file_->region_start(rank_) + offset));
  if (memory == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    lock.lock();
    give_back(offset, grain_up(mapped));
    refuse(bytes, why);
  }
  madvise(memory, mapped, MADV_HUGEPAGE);  // if the administrator allows it for shared memory
  // Allocates all pages now, not one by one in the first backward pass; older kernels cannot do
  // this. EFAULT: touching a page would be a bus error, for example under strict overcommit.
  if (madvise(memory, mapped, MADV_POPULATE_WRITE) != 0 && (errno == ENOMEM || errno == EFAULT)) {
    fallocate(file_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(file_->region_start(rank_) + offset), static_cast<off_t>(mapped));
    munmap(memory, mapped);
    lock.lock();
    give_back(offset, grain_up(mapped));
    refuse(bytes, std::strerror(ENOMEM));
  }
  lock.lock();
  auto* data = static_cast<std::byte*>(memory);
  by_address_[data] = {mapped, offset};
  blocks_.fetch_add(1, std::memory_order_relaxed);
  return std::shared_ptr<SharedBlock>(new SharedBlock(shared_from_this(), data, bytes, offset));
}

void SharedHeap::release(const SharedBlock& block) {
  // A forked child only forgets the block, which still belongs to its parent.
  if (getpid() != pid_) {
    munmap(block.data_, page_up(block.bytes_));
    return;
  }
  const std::lock_guard lock(mutex_);
  const std::size_t mapped = page_up(block.bytes_);
  by_address_.erase(block.data_);
  // This also removes the pages from the page tables of peers that have mapped them.
  if (fallocate(file_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(file_->region_start(rank_) + block.offset_),
                static_cast<off_t>(mapped)) != 0) {
    std::memset(block.data_, 0, mapped);  // a system without holes
  }
  munmap(block.data_, mapped);
  give_back(block.offset_, grain_up(mapped));
  blocks_.fetch_sub(1, std::memory_order_relaxed);
}

std::optional<std::uint64_t> SharedHeap::offset_of(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto found = by_address_.upper_bound(begin);
  if (found == by_address_.begin()) return std::nullopt;
  --found;
  const auto skip = static_cast<std::size_t>(begin - found->first);
  if (skip > found->second.bytes || bytes > found->second.bytes - skip) return std::nullopt;
  return found->second.offset + skip;
}

}  // namespace hvdtune
