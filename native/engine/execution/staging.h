#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "engine/execution/gpus.h"
#include "engine/operation/operation.h"

namespace hvdtune {

/// Page-locked host memory through which GPU tensors pass if there is no NCCL, or it cannot do an
/// operation. One thread at a time.
class Staging {
 public:
  /// `gpus` outlives it.
  explicit Staging(Gpus& gpus) : gpus_(gpus) {}

  /// A batch whose tensors are in host memory while this object exists, so that its executor sees
  /// no GPU. The zeros of a rank that has joined are there already.
  class Batch {
   public:
    /// Copies the inputs in, once they are ready. Throws Error(kAborted).
    Batch(Staging& staging, const std::vector<OperationPtr>& operations);
    /// Restores the operations' original memory.
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    /// Call it after the batch was executed. Copies the results out, and moves results that the
    /// engine has allocated to GPU memory. The results are complete when it returns. Throws
    /// Error(kAborted).
    void copy_out();

   private:
    Staging& staging_;
    const std::vector<OperationPtr>& operations_;
    std::vector<std::vector<TensorMemory>> given_;  // one per operation on a GPU
  };

 private:
  std::byte* memory(std::optional<PinnedMemory>& kept, std::size_t bytes);
  void trim();
  DeviceStream& stream();

  Gpus& gpus_;
  std::unique_ptr<DeviceStream> stream_;
  std::optional<PinnedMemory> tensors_;
  std::optional<PinnedMemory> results_;
};

}  // namespace hvdtune
