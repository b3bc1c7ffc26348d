#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/kernels/copy.h"
#include "engine/job/process_sets.h"
#include "engine/operation/operation.h"
#include "engine/submission/direct_stage.h"
#include "transport/arena/arena.h"

namespace hvdtune {

/// The data that a rank publishes for an operation that bypasses the coordinator
/// (engine/submission/direct_rounds.h), and the computation of its result from all members' data.
/// Short data is stored next to the slot, longer data on the rank's stage. Members of an allgather
/// or alltoall may have different lengths: each publishes its own.
///
/// Not thread-safe: the engine locks.
class DirectData {
 public:
  DirectData(Arena& arena, const ProcessSets& sets, int rank);

  /// Whether an operation, which has a slot, can be done in one step: all members publish, then
  /// each reads what it needs.
  [[nodiscard]] static bool suits(const Operation& operation);
  /// Bytes that this rank contributes. The caller stores them as `direct_bytes` before it calls any
  /// method below.
  [[nodiscard]] static std::size_t bytes(const Operation& operation);
  /// Whether this rank publishes on its stage.
  [[nodiscard]] bool stages(const Operation& operation) const {
    return operation.direct_bytes > kDirectBytes && publishes(operation);
  }
  /// Bytes of the longest data that fits on the stage; and of the longest if the work of its sum is
  /// shared (shared_sum.h).
  [[nodiscard]] std::size_t longest() const { return stage_.longest(); }
  [[nodiscard]] std::size_t longest_shared() const { return shared_stage_.longest(); }

  /// Publishes this rank's data for a round of the operation's slot; called before it arrives.
  /// False if there is no room at the moment. `writing`: for staged data. `shares`: whether this
  /// rank would share the work of the sum; the set's first member decides.
  bool publish(const Operation& operation, std::uint32_t round, CopyKind writing, bool shares);
  /// The round was given up: nobody will read the published data.
  void give_back(const Operation& operation, std::uint32_t round);
  /// Makes the operation's result, after all members have arrived in its round. Throws
  /// Error(kInvalidArgument) if there is no memory for it. `writing`: for data that others
  /// then read.
  void make_result(Operation& operation, CopyKind writing);
  /// Says that this rank reads nothing of the round any more.
  void release(const Operation& operation);

 private:
  /// This rank's bytes that no other rank needs.
  struct Own {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  [[nodiscard]] bool publishes(const Operation& operation) const {
    const OpKind kind = operation.request.kind;
    return kind != OpKind::kBarrier &&
           (kind != OpKind::kBroadcast || operation.request.root == rank_);
  }
  [[nodiscard]] Own own_part(const Operation& operation) const;
  [[nodiscard]] const std::vector<int>& members(const Operation& operation) const {
    return sets_.ranks(operation.request.process_set);
  }
  [[nodiscard]] const std::byte* published(const Operation& operation, int rank,
                                           std::size_t bytes) const;
  void reduce(Operation& operation, std::size_t begin, std::size_t bytes, void* result) const;
  void gather(Operation& operation, std::size_t parts);
  void place_sum(const Operation& operation, std::uint32_t round, bool shares);
  bool fetch_shared_sum(Operation& operation, CopyKind writing);

  Arena& arena_;
  const ProcessSets& sets_;
  int rank_;
  DirectStage stage_;
  DirectStage shared_stage_;
  DirectStage results_;
};

}  // namespace hvdtune
