#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/operation/operation.h"

namespace hvdtune {

/// Bytes of one row (all dimensions but the first) of a tensor that has one.
std::int64_t row_bytes(const wire::TensorSpec& spec);

/// Rows that member `index` of `members` gets of `rows` by reducescatter: the first
/// `rows % members` members get one more.
std::int64_t scattered_rows(std::int64_t rows, int index, int members);
/// The number of rows that the members before `index` get.
std::int64_t rows_before(std::int64_t rows, int index, int members);

/// Memory for the `rows` rows of an operation's result for its tensor `index`: the submitter's if
/// it has given some and the rows are `as_expected` (see TensorMemory), else a new output. Called
/// once per tensor, in order. Throws Error(kInvalidArgument) if there is not enough memory.
std::byte* place_rows(Operation& operation, std::size_t index, std::int64_t rows, bool as_expected);

}  // namespace hvdtune
