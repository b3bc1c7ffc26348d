#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "observe/capture_records.h"

namespace hvdtune::capture {

/// Tensors of one batch whose names are numbered one after the other: what a step executes again is
/// a few of these. Each tensor after the first is only how much later it was submitted.
struct TensorRun {
  std::uint32_t name = kNone;  ///< of the first
  std::uint32_t batch = 0;
  Nanos submitted = 0;  ///< the first
  std::uint32_t tensors = 0;
  std::uint32_t pad = 0;
};
static_assert(has_layout<TensorRun, 24> && offsetof(TensorRun, tensors) == 16);

/// Records of tensors in a quarter of the bytes, if they come in runs; the memory is kept for the
/// next ones. hvdtune/timeline/tensor_runs.py reads them.
class TensorRuns {
 public:
  /// Replaces what it held.
  void pack(std::span<const Tensor> tensors);

  [[nodiscard]] std::size_t count() const { return runs_.size(); }
  /// All runs, then an i4 for each tensor that does not begin one: ns since the submission of the
  /// tensor before it. Valid until the next pack().
  [[nodiscard]] std::span<const std::byte> bytes();
  /// Of bytes().
  [[nodiscard]] std::size_t size() const {
    return runs_.size() * sizeof(TensorRun) + later_.size() * sizeof(std::int32_t);
  }

 private:
  std::vector<TensorRun> runs_;
  std::vector<std::int32_t> later_;
  std::vector<std::byte> bytes_;
};

}  // namespace hvdtune::capture
