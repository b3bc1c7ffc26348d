#include "engine/coordination/fusion.h"

namespace hvdtune {
namespace {

// A batch contains names until the ranks know the slots, and whole descriptions while a rank has
// joined; one message must fit the ring.
constexpr std::size_t kMaxMessageBytes = 256 << 10;
constexpr std::size_t kDescriptionBytes = 64;  // without its name and shapes
constexpr std::size_t kTensorBytes = 8;        // without its shape

bool fusible(const wire::Request& request) {
  switch (request.kind) {
    case OpKind::kAllreduce:
    case OpKind::kAllgather:
    case OpKind::kReducescatter:
      break;
    case OpKind::kBroadcast:
    case OpKind::kAlltoall:
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      return false;
  }
  for (const wire::TensorSpec& tensor : request.tensors) {
    if (tensor.dtype != request.tensors.front().dtype) return false;
  }
  return !request.tensors.empty();
}

bool matches(const TensorEntry& head, const TensorEntry& next) {
  const wire::Request& a = head.description;
  const wire::Request& b = next.description;
  return head.in_shared_memory() == next.in_shared_memory() && a.process_set == b.process_set &&
         a.kind == b.kind && a.on_host() == b.on_host() &&
         a.tensors.front().dtype == b.tensors.front().dtype && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.reduce_op == b.reduce_op;
}

/// Bytes of an operation in the fusion buffer, as far as the coordinator knows.
std::int64_t fused_bytes(const TensorEntry& entry) {
  const std::int64_t bytes = entry.description.bytes();
  return entry.description.kind == OpKind::kAllgather
             ? bytes * static_cast<std::int64_t>(entry.members)
             : bytes;
}

/// Approximate bytes of the operation in the batch's message.
std::size_t message_bytes(const TensorEntry& entry) {
  std::size_t bytes = entry.description.name.size();
  if (entry.absent.empty()) return bytes;
  bytes += bytes + kDescriptionBytes;
  for (const wire::TensorSpec& tensor : entry.description.tensors) {
    bytes += kTensorBytes + sizeof(std::int64_t) * tensor.shape.size();
  }
  return bytes;
}

}  // namespace

void measure_for_fusion(TensorEntry& entry) {
  entry.fused_bytes = fused_bytes(entry);
  entry.message_bytes = message_bytes(entry);
}

bool has_room(const TensorEntry& first, std::int64_t bytes, std::size_t message_bytes,
              std::int64_t threshold, bool disable_group_fusion) {
  return !disable_group_fusion && fusible(first.description) && bytes < threshold &&
         message_bytes <= kMaxMessageBytes;
}

FusionPlan plan_fusion(const std::vector<TensorEntry*>& ready, std::int64_t threshold,
                       bool disable_group_fusion) {
  FusionPlan plan;
  plan.chosen.push_back(0);
  const wire::Request& head = ready.front()->description;
  if (threshold <= 0 || disable_group_fusion || !fusible(head)) {
    plan.full = true;
    return plan;
  }
  std::int64_t chosen = ready.front()->fused_bytes;
  std::int64_t passed_over = 0;
  std::size_t message = ready.front()->message_bytes;
  plan.full = chosen >= threshold;
  for (std::size_t i = 1; i < ready.size(); ++i) {
    const wire::Request& next = ready[i]->description;
    const std::int64_t bytes = ready[i]->fused_bytes;
    const bool match = fusible(next) && matches(*ready.front(), *ready[i]);
    message += ready[i]->message_bytes;
    if (match && chosen + bytes <= threshold && message <= kMaxMessageBytes) {
      plan.chosen.push_back(i);
      chosen += bytes;
      plan.full = chosen >= threshold;
      continue;
    }
    plan.full = plan.full || match;
    passed_over += bytes;
    if (chosen + passed_over > threshold) break;
  }
  return plan;
}

}  // namespace hvdtune
