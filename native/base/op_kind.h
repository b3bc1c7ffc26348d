#pragma once

#include <cstdint>

namespace hvdtune {

/// The collective operations that the engine runs.
enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
};

inline constexpr int kOpKindCount = 6;

/// Horovod's label for the operation: in error messages and in the timeline.
constexpr const char* op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return "ALLREDUCE";
    case OpKind::kAllgather:
      return "ALLGATHER";
    case OpKind::kBroadcast:
      return "BROADCAST";
    case OpKind::kAlltoall:
      return "ALLTOALL";
    case OpKind::kReducescatter:
      return "REDUCESCATTER";
    case OpKind::kBarrier:
      return "BARRIER";
  }
  return "UNKNOWN";
}

/// Reduction operators; the numbers are Horovod's public constants (`hvd.Average` …).
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

}  // namespace hvdtune
