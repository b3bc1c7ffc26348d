#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory/large_blocks.h"
#include "engine/operation/on_device.h"
#include "wire/messages.h"

namespace hvdtune {

/// Deleter of an OwnedBuffer's memory.
struct ReleaseResult {
  std::size_t capacity = 0;  ///< of a large block; 0 = from the heap

  void operator()(void* data) const {
    if (capacity > 0) {
      release_large_block({data, capacity});
    } else {
      std::free(data);
    }
  }
};

/// Memory that the engine allocates for results whose size is known only after all ranks have
/// announced theirs. Aligned to a cache line. Large blocks are reused after they are released.
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  /// Throws Error(kInvalidArgument) if there is not enough memory.
  OwnedBuffer(std::size_t bytes, std::vector<std::int64_t> shape)
      : data_(allocate(bytes)), bytes_(bytes), shape_(std::move(shape)) {}

  [[nodiscard]] void* data() const { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }

 private:
  using Memory = std::unique_ptr<void, ReleaseResult>;

  static Memory allocate(std::size_t bytes) {
    Memory memory;
    if (bytes >= kLeastLargeBlock) {
      const LargeBlock block = allocate_large_block(bytes);
      memory = Memory(block.data, ReleaseResult{block.capacity});
    } else {
      const std::size_t lines = std::max<std::size_t>((bytes + 63) / 64, 1);
      memory = Memory(std::aligned_alloc(64, lines * 64), ReleaseResult{});
    }
    if (!memory) {
      throw Error(ErrorKind::kInvalidArgument,
                  "cannot allocate " + std::to_string(bytes) + " bytes for a result");
    }
    return memory;
  }

  Memory data_;
  std::size_t bytes_ = 0;
  std::vector<std::int64_t> shape_;
};

/// The memory of a tensor: contiguous, on the host or on the request's GPU. The submitter keeps it
/// alive until the operation is done.
struct TensorMemory {
  const void* in = nullptr;
  /// Memory for the result. Allgather, alltoall, reducescatter: null, or room for the result if
  /// every rank has as many rows as this one. If it is null, or the numbers of rows differ, the
  /// engine allocates the result (Operation::outputs). On a GPU it always does.
  void* out = nullptr;
};

/// An operation on one tensor, in the submitter's data; nothing is copied. It is submitted for
/// every gradient: usually only the memory differs from the last time. An alltoall sends equal
/// parts.
struct TensorOperation {
  OpKind kind = OpKind::kAllreduce;
  std::int32_t root = 0;  ///< global rank; broadcast only
  std::string_view name;
  std::uint32_t process_set = 0;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  DType dtype = DType::kFloat32;
  std::span<const std::int64_t> shape;
  TensorMemory memory;

  [[nodiscard]] wire::Request request() const {
    wire::Request request;
    request.process_set = process_set;
    request.kind = kind;
    request.root = root;
    request.reduce_op = reduce_op;
    request.prescale = prescale;
    request.postscale = postscale;
    request.name = name;
    request.tensors.push_back({dtype, {shape.begin(), shape.end()}});
    return request;
  }

  /// Whether request() would equal `agreed`; the caller knows that name and process set are the
  /// same.
  [[nodiscard]] bool is(const wire::Request& agreed) const {
    return agreed.kind == kind && agreed.reduce_op == reduce_op && !agreed.grouped &&
           agreed.cacheable && agreed.prescale == prescale && agreed.postscale == postscale &&
           agreed.root == root && agreed.on_host() && agreed.tensors.size() == 1 &&
           agreed.tensors.front().dtype == dtype &&
           std::ranges::equal(agreed.tensors.front().shape, shape);
  }
};

/// Identifies an operation on one tensor that all ranks know by the number of its agreement: enough
/// to submit it again without comparing names and descriptions. A process never uses a number
/// twice, so an agreement of another engine, or of a name with a new meaning, matches nothing.
struct KnownOperation {
  wire::Slot slot = wire::kNoSlot;
  std::uint64_t agreement = 0;  ///< as Operation::agreement
};

/// The names of an operation in a recording.
struct RecordedAs {
  std::uint32_t first_name = UINT32_MAX;  ///< of its tensors, which have consecutive numbers
  std::uint32_t tensors = 0;
  std::int64_t bytes = 0;
  std::uint32_t generation = 0;  ///< of the recording; 0: of none
};

struct Operation;

/// Called when an operation is over and has its status and results. Must not throw, and must not
/// wait for another operation.
using OnDone = std::function<void(std::shared_ptr<Operation>)>;

/// One submitted operation, from submit() until its result is taken.
struct Operation {
  std::int64_t handle = 0;
  wire::Request request;
  std::vector<TensorMemory> memory;  ///< one per tensor
  std::vector<std::int64_t> splits;  ///< alltoall: rows for each member
  /// For tensors on a GPU, whose addresses are in `memory`; null on the host, and for the zeros of
  /// a rank that has joined.
  std::shared_ptr<OnDevice> on_device;
  wire::Ticket ticket = 0;
  /// Whether it bypasses the coordinator: it has arrived in this round of its slot, and waits for
  /// the other ranks.
  std::atomic<bool> direct{false};
  std::uint32_t direct_round = 0;
  std::size_t direct_bytes = 0;  ///< that this rank contributes there
  OnDone on_done;                ///< with `calls`

  // Results; written before `done` is set, read after it is seen.
  std::vector<OwnedBuffer> outputs;
  /// alltoall: rows from each member. Join: the last rank to join. A new process set: its number.
  std::vector<std::int64_t> numbers;

  // The members from here on share a cache line and are read when a batch is over: of a thousand
  // small tensors, none is in the cache by then.

  /// When this rank announced the operation; 0 for the zeros of a rank that has joined.
  alignas(64) Nanos submitted = 0;
  /// Its names in the recording; written before `done` is set, except on a GPU. Kept as long as the
  /// operation is reused.
  RecordedAs recorded;
  wire::Slot slot = wire::kNoSlot;  ///< slot with which it was announced
  std::atomic<bool> done{false};
  bool calls = false;   ///< whether on_done is called; otherwise the submitter uses the handle
  bool driven = false;  ///< its submitter makes progress as soon as it is announced
  /// OperationTable's number of the agreement that `request` equals; 0 = none.
  std::uint64_t agreement = 0;
  Status status;  // also a result
};

/// Prefetches the members of a batch's operations that are read when it is over, ahead of operation
/// `at`.
inline void prefetch_end(const std::vector<std::shared_ptr<Operation>>& batch, std::size_t at) {
  constexpr std::size_t kAhead = 24;
  if (at + kAhead < batch.size()) __builtin_prefetch(&batch[at + kAhead]->submitted, 1);
}

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvdtune
