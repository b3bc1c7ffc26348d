#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "engine/execution/gpus.h"
#include "engine/operation/operation.h"

namespace hvdtune {

/// Page-locked host memory through which tensors on a GPU travel where there is no NCCL, or it
/// cannot do an operation. One thread at a time.
class Staging {
 public:
  /// `gpus` outlives it.
  explicit Staging(Gpus& gpus) : gpus_(gpus) {}

  /// A batch whose tensors are in host memory while this lives: what executes it sees no GPU. What
  /// a rank that has joined contributes is there already.
  class Batch {
   public:
    /// Copies in what is read, once it is ready. Throws Error(kAborted).
    Batch(Staging& staging, const std::vector<OperationPtr>& operations);
    /// The operations' memory is as it was.
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    /// The batch was executed: copies out the results, and what the engine has allocated becomes
    /// memory of the GPU. The results are there when it returns. Throws Error(kAborted).
    void copy_out();

   private:
    Staging& staging_;
    const std::vector<OperationPtr>& operations_;
    std::vector<std::vector<TensorMemory>> given_;  // one an operation, of those on a GPU
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
