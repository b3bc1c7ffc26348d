#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/op_kind.h"
#include "collective/kernels/copy.h"
#include "transport/arena/arena.h"
#include "wire/messages.h"

namespace hvdtune {

/// The sum of a direct round (engine/submission/direct_rounds.h) for ranks that take turns on a
/// CPU, of a tensor that is too long for every member to read all members' data. Every common step
/// of such ranks costs a turn of each, so there is only one: when the last rank has arrived, any
/// running rank sums up pieces (transport/arena/shared_work.h) into memory of the set's first
/// member, and each rank copies the result when its turn comes. No rank depends on another: all
/// published data stays until all have the result, and a member that has waited too long for
/// another's piece (it may be stopped, or dead) gives up the shared work for all members.
class SharedSum {
 public:
  /// The round's parameters, the same on all members.
  struct Round {
    wire::Slot slot;       ///< below kDirectSlots
    std::uint32_t number;  ///< of the slot, complete: every member has published its data
    DType dtype;
    ReduceOp op;  ///< an elementary operator: see plain_reduction()
    double post;  ///< factor of the result
    std::size_t bytes;
  };

  /// The others need microseconds for a piece, and milliseconds if the system runs another thread
  /// meanwhile.
  static constexpr Nanos kPatience = 10 * kMillisecond;

  /// `arena` and `ranks` (the process set's) must outlive this object. `patience`: how long to wait
  /// for pieces that others have claimed.
  SharedSum(Arena& arena, const std::vector<int>& ranks, const Round& round,
            Nanos patience = kPatience);

  /// Sums up pieces as long as there are some, waits for those of others, and copies the result to
  /// `out`. False: the sum is not shared, or was given up; the caller must reduce everything
  /// itself. After true, no member reads this one's data any more. Does not throw. `writing`: how
  /// to write the result, which the others read.
  bool fetch(void* out, CopyKind writing);

 private:
  void sum_piece(std::byte* result, std::size_t begin, std::size_t bytes, CopyKind writing) const;
  [[nodiscard]] bool wait_for_others(SharedWork& work) const;
  [[nodiscard]] std::uint32_t pieces() const;

  Arena& arena_;
  const std::vector<int>& ranks_;
  Round round_;
  Nanos patience_;
};

}  // namespace hvdtune
