#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/kernels/copy.h"
#include "engine/job/process_sets.h"
#include "engine/operation/operation.h"
#include "engine/submission/direct_stage.h"
#include "transport/arena/arena.h"

namespace hvdtune {

/// What a rank publishes of an operation that goes past the coordinator
/// (engine/submission/direct_rounds.h), and how it makes its result of what all members have
/// published. Short data lie next to the slot, longer ones on the rank's stage. Members of an
/// allgather or alltoall may bring different lengths: each publishes its own.
///
/// Not thread-safe: the engine locks.
class DirectData {
 public:
  DirectData(Arena& arena, const ProcessSets& sets, int rank);

  /// Whether an operation, which has a slot, can be done in one step: all publish, then each takes
  /// what it needs.
  [[nodiscard]] static bool suits(const Operation& operation);
  /// How much this rank brings, in bytes: to be noted as `direct_bytes` before anything below.
  [[nodiscard]] static std::size_t bytes(const Operation& operation);
  /// Whether what this rank publishes goes to its stage.
  [[nodiscard]] bool stages(const Operation& operation) const {
    return operation.direct_bytes > kDirectBytes && publishes(operation);
  }
  /// The longest that finds room there; and if its sum is shared (shared_sum.h).
  [[nodiscard]] std::size_t longest() const { return stage_.longest(); }
  [[nodiscard]] std::size_t longest_shared() const { return shared_stage_.longest(); }

  /// Publishes what the members need of this rank in a round of the operation's slot; before it
  /// arrives. False when there is no room at the moment. `writing`: of what is staged.
  /// `shares`: this rank would share the work of the sum; the set's first member decides.
  bool publish(const Operation& operation, std::uint32_t round, CopyKind writing, bool shares);
  /// The round was given up: nobody will read what was published.
  void give_back(const Operation& operation, std::uint32_t round);
  /// Everybody has arrived in the operation's round: makes its result. Throws
  /// Error(kInvalidArgument) when there is no memory for it. `writing`: of what others read then.
  void make_result(Operation& operation, CopyKind writing);
  /// This rank does not read anything of the round any more.
  void release(const Operation& operation);

 private:
  /// Bytes that nobody but this rank needs of what it brings.
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
