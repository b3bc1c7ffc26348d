#include "engine/operation/results.h"

namespace hvdtune {

std::int64_t row_bytes(const wire::TensorSpec& spec) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_size(spec.dtype));
  for (std::size_t dim = 1; dim < spec.shape.size(); ++dim) bytes *= spec.shape[dim];
  return bytes;
}

std::int64_t scattered_rows(std::int64_t rows, int index, int members) {
  return rows / members + (index < rows % members ? 1 : 0);
}

std::int64_t rows_before(std::int64_t rows, int index, int members) {
  return rows / members * index + std::min<std::int64_t>(index, rows % members);
}

std::byte* place_rows(Operation& operation, std::size_t index, std::int64_t rows,
                      bool as_expected) {
  void* const given = operation.memory[index].out;
  if (given != nullptr && as_expected) return static_cast<std::byte*>(given);
  const wire::TensorSpec& spec = operation.request.tensors[index];
  std::vector<std::int64_t> shape = spec.shape;
  shape[0] = rows;
  operation.outputs.emplace_back(static_cast<std::size_t>(rows * row_bytes(spec)),
                                 std::move(shape));
  return static_cast<std::byte*>(operation.outputs.back().data());
}

}  // namespace hvdtune
