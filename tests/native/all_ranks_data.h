#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "collective/kernels.h"
#include "reference.h"

namespace hvdtune::testing {

inline KernelOp kernel_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return KernelOp::kMin;
    case ReduceOp::kMax:
      return KernelOp::kMax;
    case ReduceOp::kProduct:
      return KernelOp::kProduct;
    default:
      return KernelOp::kSum;
  }
}

/// The data of all ranks for one operation.
inline std::vector<Bytes> random_inputs(DType dtype, int ranks, std::size_t count,
                                        std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(count * dtype_size(dtype));
    fill_random(dtype, inputs.back().data(), count, generator);
  }
  return inputs;
}

/// What an allreduce of `inputs` must give: scaled values are rounded to the type before and after.
inline Bytes expected_reduction(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                                double prescale, double postscale) {
  const std::size_t count = inputs[0].size() / dtype_size(dtype);
  std::vector<Bytes> scaled;
  std::vector<const void*> sources;
  for (const Bytes& input : inputs) {
    scaled.push_back(
        prescale == 1.0 ? input
                        : reference_reduce(dtype, KernelOp::kSum, {input.data()}, count, prescale));
  }
  for (const Bytes& input : scaled) sources.push_back(input.data());
  return reference_reduce(dtype, kernel_op(op), sources, count, postscale);
}

}  // namespace hvdtune::testing
