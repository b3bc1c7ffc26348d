#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/job/process_sets.h"
#include "engine/operation/operation.h"

namespace hvdtune {

/// A submission of one rank.
struct Submission {
  wire::Request request;
  std::vector<TensorMemory> memory;
  std::vector<std::int64_t> splits;  ///< alltoall only
  /// For tensors on a GPU: they can be used after these streams' work up to now.
  std::vector<CudaStream> streams = {};
};

/// Throws Error(kInvalidArgument) with that text.
[[noreturn]] void refuse(const std::string& text);
/// The same for a tensor with the name of another one that is not done yet.
[[noreturn]] void refuse_name_in_flight(const std::string& name);
/// Throws Error(kInvalidArgument) if `rank` cannot submit this; kMismatch if no rank can. `joined`:
/// this rank has joined, but not all ranks have.
void check_request(const wire::Request& request, const ProcessSets& sets, int rank, bool joined);
/// Throws Error(kInvalidArgument) if memory or splits do not fit the request. After
/// check_request().
void check_fit(const Submission& submission, const ProcessSets& sets);
/// Rows for each member of an alltoall of equal parts; the remainder is not sent. Empty for
/// requests that check_request() refuses.
std::vector<std::int64_t> equal_splits(const TensorOperation& alltoall, const ProcessSets& sets);

}  // namespace hvdtune
