#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/libraries/cuda_types.h"

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
  /// For another process: the file, and where in it the allocation that begins at `pointer` is.
  struct Export {
    int fd;
    std::size_t offset;
    std::size_t bytes;
  };
  [[nodiscard]] std::optional<Export> share(CudaPointer pointer) const;

  static constexpr std::size_t kSpace = std::size_t{8} << 30;

 private:
  int fd_;
  CudaPointer base_;
  std::byte* alias_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> live_;  ///< offset → bytes
};

/// An allocation of another process. Its addresses are not mapped either.
class ForeignMemory {
 public:
  /// Null where the process is gone.
  static std::shared_ptr<ForeignMemory> open(int pid, const Memory::Export& what);
  ~ForeignMemory();
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;

  [[nodiscard]] CudaPointer pointer() const { return base_; }
  [[nodiscard]] std::byte* find(CudaPointer pointer, std::size_t bytes) const;

 private:
  ForeignMemory() = default;

  CudaPointer base_ = 0;
  std::byte* alias_ = nullptr;
  std::size_t bytes_ = 0;
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
