#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "faults.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kAlignment = 4096;  // a page, so that another process can map it alone
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
  fd_ = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, kSpace) != 0) std::abort();
  alias_ = static_cast<std::byte*>(map(PROT_READ | PROT_WRITE, MAP_SHARED, fd_, kSpace));
  base_ = reinterpret_cast<CudaPointer>(map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, kSpace));
}

Memory::~Memory() {
  close(fd_);
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

std::optional<Memory::Export> Memory::share(CudaPointer pointer) const {
  const std::lock_guard lock(mutex_);
  const auto found = owns(pointer) ? live_.find(pointer - base_) : live_.end();
  if (found == live_.end()) return {};
  return Export{fd_, found->first, found->second};
}

std::shared_ptr<ForeignMemory> ForeignMemory::open(int pid, const Memory::Export& what) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(what.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  std::shared_ptr<ForeignMemory> memory(new ForeignMemory);
  void* const place = mmap(nullptr, what.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                           static_cast<off_t>(what.offset));
  close(fd);
  if (place == MAP_FAILED) return nullptr;
  memory->alias_ = static_cast<std::byte*>(place);
  memory->bytes_ = what.bytes;
  memory->base_ =
      reinterpret_cast<CudaPointer>(map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, what.bytes));
  return memory;
}

ForeignMemory::~ForeignMemory() {
  if (alias_ == nullptr) return;
  munmap(alias_, bytes_);
  munmap(reinterpret_cast<void*>(base_), bytes_);
}

std::byte* ForeignMemory::find(CudaPointer pointer, std::size_t bytes) const {
  if (pointer < base_ || pointer - base_ > bytes_ || bytes > bytes_ - (pointer - base_)) {
    return nullptr;
  }
  return alias_ + (pointer - base_);
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
