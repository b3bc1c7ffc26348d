#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/op_kind.h"
#include "wire/codec.h"

namespace hvdtune::wire {

/// One tensor of a request: what ranks must agree about (coordination/agreement.cc).
struct TensorSpec {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const;
};

inline constexpr std::int32_t kOnHost = -1;

/// The full description of an operation, sent when the coordinator does not know it yet.
/// A grouped operation is one request with several tensors: it is scheduled whole or not at all.
struct Request {
  std::uint32_t process_set = 0;
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool grouped = false;
  /// False for automatic names, which are never used again and would only waste slots.
  bool cacheable = true;
  std::int32_t root = 0;  ///< global rank; broadcast only
  /// The sender's GPU that its tensors are on; kOnHost if on none. Ranks may have different GPUs.
  std::int32_t device = kOnHost;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;
  std::vector<TensorSpec> tensors;
  /// kAddProcessSet: its global ranks, ascending. kRemoveProcessSet: its number, alone.
  std::vector<std::int32_t> ranks;

  bool operator==(const Request&) const = default;
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] bool on_host() const { return device == kOnHost; }

  void encode(Encoder& out) const;
  /// Throws DecodeError.
  static Request decode(Decoder& in);
};

/// Horovod's label for the operation; Adasum has its own.
const char* operation_label(const Request& request);

/// "[2, 3]"; "[]" for a scalar.
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The same for ranks.
std::string ranks_text(const std::vector<std::int32_t>& ranks);

/// Name of tensor `index` of a request, as users see it: `<base>_<i>of<n>` in groups.
std::string tensor_name(const Request& request, std::size_t index);

}  // namespace hvdtune::wire
