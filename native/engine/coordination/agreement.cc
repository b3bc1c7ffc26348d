#include "engine/coordination/agreement.h"

#include <cstdio>

#include "collective/adasum.h"

namespace hvdtune {
namespace {

using wire::Request;

/// "Mismatched X: rank 0 has A, rank 1 has B (tensor T)."
class Difference {
 public:
  Difference(const Request& first, int first_rank, int other_rank)
      : name_(first.name), first_rank_(first_rank), other_rank_(other_rank) {}

  [[nodiscard]] std::string operator()(const std::string& what, const std::string& first,
                                       const std::string& other) const {
    return "Mismatched " + what + " for tensor " + name_ + ": rank " + std::to_string(first_rank_) +
           " has " + first + ", rank " + std::to_string(other_rank_) + " has " + other + ".";
  }

  void set_tensor(const std::string& name) { name_ = name; }
  [[nodiscard]] const std::string& tensor() const { return name_; }

 private:
  std::string name_;
  int first_rank_;
  int other_rank_;
};

std::string factors(const Request& request) {
  char text[96];
  std::snprintf(text, sizeof(text), "(%.6g, %.6g)", request.prescale, request.postscale);
  return text;
}

/// Allgather and alltoall: all dimensions except the first.
std::string gather_shape_difference(const Difference& difference, OpKind kind,
                                    const wire::TensorSpec& a, const wire::TensorSpec& b) {
  const std::string op = op_kind_name(kind);
  if (a.shape.size() != b.shape.size()) {
    return difference(op + " tensor shapes", "a tensor of rank " + std::to_string(a.shape.size()),
                      "a tensor of rank " + std::to_string(b.shape.size()));
  }
  for (std::size_t dim = 1; dim < a.shape.size(); ++dim) {
    if (a.shape[dim] == b.shape[dim]) continue;
    const auto text = [dim](std::int64_t extent) {
      return "a tensor with dimension " + std::to_string(dim) + " equal to " +
             std::to_string(extent);
    };
    return difference(op + " tensor shapes", text(a.shape[dim]), text(b.shape[dim]));
  }
  return {};
}

}  // namespace

std::string disagreement(const Request& first, int first_rank, const Request& other,
                         int other_rank) {
  Difference difference(first, first_rank, other_rank);
  const std::size_t tensors = std::min(first.tensors.size(), other.tensors.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    if (first.tensors[i].dtype == other.tensors[i].dtype) continue;
    difference.set_tensor(wire::tensor_name(first, i));
    return difference("data types", dtype_name(first.tensors[i].dtype),
                      dtype_name(other.tensors[i].dtype));
  }
  const OpTraits traits = traits_of(first.kind);
  const bool adasum = first.reduce_op == ReduceOp::kAdasum;
  if (first.kind != other.kind || adasum != (other.reduce_op == ReduceOp::kAdasum)) {
    return difference("operations", wire::operation_label(first), wire::operation_label(other));
  }
  if (first.ranks != other.ranks) {
    return difference("process sets", wire::ranks_text(first.ranks), wire::ranks_text(other.ranks));
  }
  if (first.grouped != other.grouped || first.tensors.size() != other.tensors.size()) {
    const auto text = [](const Request& request) {
      return request.grouped ? "a group of " + std::to_string(request.tensors.size()) + " tensors"
                             : std::string("a single tensor");
    };
    return difference("group sizes", text(first), text(other));
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    const wire::TensorSpec& a = first.tensors[i];
    const wire::TensorSpec& b = other.tensors[i];
    difference.set_tensor(wire::tensor_name(first, i));
    if (!traits.rows_may_differ) {
      if (a.shape == b.shape) continue;
      return difference(std::string(op_kind_name(first.kind)) + " tensor shapes",
                        wire::shape_text(a.shape), wire::shape_text(b.shape));
    }
    if (auto text = gather_shape_difference(difference, first.kind, a, b); !text.empty()) {
      return text;
    }
  }
  difference.set_tensor(first.name);
  if (traits.reduces && (first.prescale != other.prescale || first.postscale != other.postscale)) {
    return difference("prescale and/or postscale factors", factors(first), factors(other));
  }
  if (traits.reduces && first.reduce_op != other.reduce_op) {
    return difference("reduction operation", std::to_string(static_cast<int>(first.reduce_op)),
                      std::to_string(static_cast<int>(other.reduce_op)));
  }
  if (traits.rooted && first.root != other.root) {
    return difference(std::string(op_kind_name(first.kind)) + " root ranks",
                      std::to_string(first.root), std::to_string(other.root));
  }
  if (first.on_host() != other.on_host()) {
    const auto place = [](const Request& request) { return request.on_host() ? "CPU" : "GPU"; };
    return difference("CPU/GPU device selection", place(first), place(other));
  }
  return {};
}

std::string unusable(const Request& request) {
  if (request.kind == OpKind::kAllreduce && request.reduce_op == ReduceOp::kAdasum) {
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      if (adasum_supports(request.tensors[i].dtype)) continue;
      return std::string("Unsupported data type for ADASUM: ") + wire::tensor_name(request, i) +
             " has " + dtype_name(request.tensors[i].dtype) +
             "; float16, bfloat16, float32 and float64 are accepted.";
    }
    return {};
  }
  if (!traits_of(request.kind).changes_rows) return {};
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    if (!request.tensors[i].shape.empty()) continue;
    return std::string(op_kind_name(request.kind)) +
           " of a rank-zero tensor: " + wire::tensor_name(request, i) +
           " is a scalar; at least one dimension is needed.";
  }
  return {};
}

}  // namespace hvdtune
