#pragma once

#include "base/op_kind.h"

namespace hvdtune {

/// The timeline's names of a communicator's exchanges, e.g. "SHM_ALLREDUCE". Static storage.
struct Activities {
  const char* allreduce;
  const char* allgather;
  const char* broadcast;
  const char* alltoall;
  const char* reducescatter;
  const char* barrier;
  const char* other;  ///< for operations that exchange no data

  [[nodiscard]] constexpr const char* of(OpKind kind) const {
    switch (kind) {
      case OpKind::kAllreduce:
        return allreduce;
      case OpKind::kAllgather:
        return allgather;
      case OpKind::kBroadcast:
        return broadcast;
      case OpKind::kAlltoall:
        return alltoall;
      case OpKind::kReducescatter:
        return reducescatter;
      case OpKind::kBarrier:
        return barrier;
      case OpKind::kJoin:
      case OpKind::kAddProcessSet:
      case OpKind::kRemoveProcessSet:
        break;
    }
    return other;
  }
};

}  // namespace hvdtune
