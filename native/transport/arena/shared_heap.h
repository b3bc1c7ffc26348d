#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/arena/heap_file.h"

namespace hvdtune {

class SharedHeap;

/// Memory in this rank's region of the heap file. It is zero at first, and belongs to the process
/// for as long as the object exists, even after the job has ended (after an abort, a peer may still
/// finish its write into a tensor that was being reduced). The destructor returns it to the system.
class SharedBlock {
 public:
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Position in the rank's region.
  [[nodiscard]] std::uint64_t offset() const { return offset_; }

 private:
  friend class SharedHeap;
  SharedBlock(std::shared_ptr<SharedHeap> heap, std::byte* data, std::size_t bytes,
              std::uint64_t offset)
      : heap_(std::move(heap)), data_(data), bytes_(bytes), offset_(offset) {}

  std::shared_ptr<SharedHeap> heap_;
  std::byte* data_;
  std::size_t bytes_;
  std::uint64_t offset_;
};

/// One rank's region of the heap file, as its owner sees it. Made for few large blocks: every block
/// is a mapping of its own. Thread-safe.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  SharedHeap(std::shared_ptr<HeapFile> file, int rank);

  /// Throws Error(kInvalidArgument) if there is not enough memory.
  std::shared_ptr<SharedBlock> allocate(std::size_t bytes);

  /// Offset in the region of [data, data + bytes), if that is inside one block.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const;

  /// Whether there is no block, so that offset_of() would find nothing. Cheap.
  [[nodiscard]] bool empty() const { return blocks_.load(std::memory_order_relaxed) == 0; }

 private:
  friend class SharedBlock;
  struct Extent {
    std::size_t bytes;
    std::uint64_t offset;
  };
  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t offset, std::uint64_t bytes);
  void release(const SharedBlock& block);

  std::shared_ptr<HeapFile> file_;
  int rank_;
  int pid_;
  std::atomic<std::size_t> blocks_{0};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_;    // offset -> bytes; neighbours are joined
  std::map<const std::byte*, Extent> by_address_;  // the living blocks
};

}  // namespace hvdtune
