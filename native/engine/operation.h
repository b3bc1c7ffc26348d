#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/huge_pages.h"
#include "wire/messages.h"

namespace hvdtune {

/// Memory that the engine allocates for results whose size is known only when all ranks have
/// spoken. Aligned to a cache line.
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  /// Throws Error(kInvalidArgument) when there is not enough memory.
  OwnedBuffer(std::size_t bytes, std::vector<std::int64_t> shape)
      : bytes_(bytes), shape_(std::move(shape)) {
    const std::size_t rounded = (bytes + 63) / 64 * 64;
    data_.reset(std::aligned_alloc(64, rounded == 0 ? 64 : rounded));
    if (!data_) {
      throw Error(ErrorKind::kInvalidArgument,
                  "cannot allocate " + std::to_string(bytes) + " bytes for a result");
    }
    prefer_huge_pages(data_.get(), bytes);
  }

  [[nodiscard]] void* data() const { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  /// Gives the memory away; free() it.
  void* release() { return data_.release(); }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t bytes_ = 0;
  std::vector<std::int64_t> shape_;
};

/// Where a tensor is: contiguous memory, which the submitter keeps alive until the operation is
/// done.
struct TensorMemory {
  const void* in = nullptr;
  void* out = nullptr;  ///< null where the engine allocates the result
};

/// One submitted operation, from submit() until its result is taken.
struct Operation {
  std::int64_t handle = 0;
  wire::Request request;
  std::vector<TensorMemory> memory;  ///< one a tensor
  std::vector<std::int64_t> splits;  ///< alltoall: rows for each member
  wire::Ticket ticket = 0;
  wire::Slot slot = wire::kNoSlot;  ///< it was announced by this slot
  /// It has arrived in this round of the slot without the coordinator, and waits for the others.
  std::atomic<bool> direct{false};
  std::uint32_t direct_round = 0;

  // Results; written before `done` is set, read after it is seen.
  Status status;
  std::vector<OwnedBuffer> outputs;
  /// alltoall: rows from each member. Join: the last rank to join. A new process set: its number.
  std::vector<std::int64_t> numbers;
  std::atomic<bool> done{false};
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvdtune
