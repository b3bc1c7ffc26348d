#pragma once

#include <cstdint>
#include <string>

namespace hvdtune {

/// What ranks can ask the engine for. Those before kJoin move data or wait; the others change which
/// ranks participate, and the ranks agree on them in the same way.
enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,              ///< contribute zeros until all ranks have joined
  kAddProcessSet = 7,     ///< all ranks agree on a new process set
  kRemoveProcessSet = 8,  ///< … and on the end of one
};

inline constexpr int kOpKindCount = 9;

/// What all operations of a kind have in common.
struct OpTraits {
  bool reduces = false;       ///< it has a reduction operator and factors
  bool rooted = false;        ///< it has a root rank
  bool changes_rows = false;  ///< tensors have rows, and a result may have another number of them
  bool rows_may_differ = false;  ///< ranks may bring different numbers of rows
};

constexpr OpTraits traits_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return {.reduces = true};
    case OpKind::kBroadcast:
      return {.rooted = true};
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      return {.changes_rows = true, .rows_may_differ = true};
    case OpKind::kReducescatter:
      return {.reduces = true, .changes_rows = true};
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  return {};
}

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
    case OpKind::kJoin:
      return "JOIN";
    case OpKind::kAddProcessSet:
      return "ADD_PROCESS_SET";
    case OpKind::kRemoveProcessSet:
      return "REMOVE_PROCESS_SET";
  }
  return "UNKNOWN";
}

/// The same in lower case: in Python, in names on the wire and in recordings.
inline std::string op_kind_lower_name(OpKind kind) {
  std::string name = op_kind_name(kind);
  for (char& letter : name) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return name;
}

/// Reduction operators; the numbers are Horovod's public constants (`hvd.Average` …).
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,  ///< allreduce only, see collective/adasum.h
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

}  // namespace hvdtune
