#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "faults.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kPattern = 0xcd;
constexpr std::size_t kPatternBytes = std::size_t{1} << 20;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void* map(int protection, int flags, int fd, std::size_t bytes) {
  void* const place = mmap(nullptr, bytes, protection, flags | MAP_NORESERVE, fd, 0);
  if (place == MAP_FAILED) std::abort();
  return place;
}

/// Whether [at, at + bytes) lies in one of `live`.
template <class Place>
bool inside(const std::map<Place, std::size_t>& live, Place at, std::size_t bytes) {
  auto after = live.upper_bound(at);
  if (after == live.begin()) return false;
  --after;
  return at - after->first <= after->second && bytes <= after->second - (at - after->first);
}

}  // namespace

Memory::Memory() {
  const int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kSpace) != 0) std::abort();
  alias_ = static_cast<std::byte*>(map(PROT_READ | PROT_WRITE, MAP_SHARED, fd, kSpace));
  base_ = reinterpret_cast<CudaPointer>(map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, kSpace));
  close(fd);
}

Memory::~Memory() {
  munmap(alias_, kSpace);
  munmap(reinterpret_cast<void*>(base_), kSpace);
}

CudaPointer Memory::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t space =
      std::min(kSpace, static_cast<std::size_t>(setting("memory", static_cast<long>(kSpace))));
  std::size_t at = 0;
  for (const auto& [offset, length] : live_) {
    if (offset - at >= aligned(bytes)) break;
    at = offset + aligned(length);
  }
  if (bytes == 0 || at > space || bytes > space - at) return 0;
  live_[at] = bytes;
  std::memset(alias_ + at, kPattern, std::min(bytes, kPatternBytes));
  return base_ + at;
}

bool Memory::free(CudaPointer pointer) {
  const std::lock_guard lock(mutex_);
  return owns(pointer) && live_.erase(pointer - base_) == 1;
}

void Memory::free_all() {
  const std::lock_guard lock(mutex_);
  live_.clear();
}

bool Memory::owns(CudaPointer pointer) const {
  return pointer >= base_ && pointer - base_ < kSpace;
}

std::byte* Memory::find(CudaPointer pointer, std::size_t bytes) const {
  if (!owns(pointer)) return nullptr;
  const std::lock_guard lock(mutex_);
  const std::size_t at = pointer - base_;
  return inside(live_, at, bytes) ? alias_ + at : nullptr;
}

std::size_t Memory::allocations() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

void* PinnedTable::allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  live_[reinterpret_cast<CudaPointer>(memory)] = bytes;
  return memory;
}

bool PinnedTable::free(void* memory) {
  const std::lock_guard lock(mutex_);
  if (live_.erase(reinterpret_cast<CudaPointer>(memory)) == 0) return false;
  std::free(memory);
  return true;
}

std::byte* PinnedTable::find(CudaPointer pointer, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return inside(live_, pointer, bytes) ? reinterpret_cast<std::byte*>(pointer) : nullptr;
}

std::size_t PinnedTable::allocations() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

}  // namespace fake_cuda
