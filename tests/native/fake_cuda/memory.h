#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "device/cuda_types.h"

namespace fake_cuda {

using hvdtune::CudaPointer;

/// The memory of one GPU. Its addresses are not mapped: who reads or writes them without the driver
/// gets a segmentation fault, as on a real machine. Behind them there is a file in memory, mapped
/// at another place. Any thread.
class Memory {
 public:
  Memory();
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// 0: no room. Filled with a pattern, so that nobody relies on zeros.
  CudaPointer allocate(std::size_t bytes);
  bool free(CudaPointer pointer);
  void free_all();
  /// Whether `pointer` is an address of this GPU, allocated or not.
  [[nodiscard]] bool owns(CudaPointer pointer) const;
  /// Where these bytes really are; null unless all belong to one allocation.
  [[nodiscard]] std::byte* find(CudaPointer pointer, std::size_t bytes) const;
  [[nodiscard]] std::size_t allocations() const;

 private:
  static constexpr std::size_t kSpace = std::size_t{8} << 30;

  CudaPointer base_;
  std::byte* alias_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> live_;  ///< offset → bytes
};

/// Page-locked host memory.
class PinnedTable {
 public:
  void* allocate(std::size_t bytes);
  bool free(void* memory);
  [[nodiscard]] std::byte* find(CudaPointer pointer, std::size_t bytes) const;
  [[nodiscard]] std::size_t allocations() const;

 private:
  mutable std::mutex mutex_;
  std::map<CudaPointer, std::size_t> live_;
};

}  // namespace fake_cuda
