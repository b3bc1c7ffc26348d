#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "base/op_kind.h"

namespace hvdtune::faces::xla {

/// Indices of the `numbers` that a custom call is compiled with.
enum CallNumber : int {
  kCallKind,
  kCallReduceOp,
  kCallRoot,
  kCallProcessSet,
  kCallGrouped,
  kCallMembers,  ///< size of the process set for which the program was compiled; 0: it serves any
  kCallIndex,    ///< of this rank among them
  kCallEqual,    ///< every member has as many rows as this rank
  kCallNumbers
};

/// The parameters that a custom call for a collective is compiled with; the caller owns their
/// memory.
struct Call {
  std::string_view name;  ///< as all ranks know it; several tensors that are not a group each
                          ///< get a number after it
  std::span<const std::int64_t> numbers;
  std::span<const double> factors;         ///< multiplied before and after a reduction
  std::span<const std::int64_t> splits;    ///< alltoall only: rows for each member,
  std::span<const std::int64_t> received;  ///< … and from each; empty: equal parts

  [[nodiscard]] std::int64_t number(CallNumber which) const {
    return numbers[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] OpKind kind() const { return static_cast<OpKind>(number(kCallKind)); }
  [[nodiscard]] auto process_set() const {
    return static_cast<std::uint32_t>(number(kCallProcessSet));
  }
  /// Whether the number of rows of the result depends on the ranks.
  [[nodiscard]] bool changes_rows() const { return traits_of(kind()).changes_rows; }
};

/// An argument or a result in XLA's memory.
struct Tensor {
  DType dtype = DType::kFloat32;
  std::span<const std::int64_t> shape;
  void* data = nullptr;

  [[nodiscard]] std::size_t bytes() const;
};

[[noreturn]] void refuse_call(const std::string& text);

/// Submits the tensors to the running engine, and returns when the results are complete. Throws
/// Error with the engine's text; also if an allgather, alltoall or reducescatter has results of
/// other shapes than the program was compiled with, or if it was compiled for another place.
void run_call(const Call& call, std::span<const Tensor> tensors, std::span<const Tensor> results);

/// The text of an error for XLA. Code that restarts training recognises an operation that failed
/// with its job by the beginning of the text.
[[nodiscard]] std::string text_of(const Error& error);
/// Whether the error is the end of the job, and not a mistake of the program.
[[nodiscard]] bool ends_job(ErrorKind kind);

}  // namespace hvdtune::faces::xla
