#include "observe/tensor_runs.h"

#include <cstring>

namespace hvdtune::capture {

void TensorRuns::pack(std::span<const Tensor> tensors) {
  runs_.clear();
  later_.clear();
  const Tensor* before = nullptr;
  for (const Tensor& tensor : tensors) {
    if (before != nullptr && tensor.batch == before->batch && tensor.name == before->name + 1) {
      const Nanos later = tensor.submitted - before->submitted;
      const auto narrow = static_cast<std::int32_t>(later);
      if (narrow == later) {
        ++runs_.back().tensors;
        later_.push_back(narrow);
        before = &tensor;
        continue;
      }
    }
    runs_.push_back({tensor.name, tensor.batch, tensor.submitted, 1, 0});
    before = &tensor;
  }
}

std::span<const std::byte> TensorRuns::bytes() {
  const std::size_t of_runs = runs_.size() * sizeof(TensorRun);
  bytes_.resize(size());
  if (!runs_.empty()) std::memcpy(bytes_.data(), runs_.data(), of_runs);
  if (!later_.empty()) {
    std::memcpy(bytes_.data() + of_runs, later_.data(), later_.size() * sizeof(std::int32_t));
  }
  return bytes_;
}

}  // namespace hvdtune::capture
