#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/operation/tensor_entry.h"

namespace hvdtune {

/// The ready tensors that form the next batch.
struct FusionPlan {
  std::vector<std::size_t> chosen;  ///< indices into the ready list, ascending; never empty
  /// A tensor that would have matched did not fit: the batch can grow no further.
  bool full = false;
};

/// Fills in the numbers that the rule needs, for a tensor that has become ready.
void measure_for_fusion(TensorEntry& entry);

/// Whether all ready tensors fit in one batch with room for more. `bytes` and `message_bytes`:
/// their sums.
bool has_room(const TensorEntry& first, std::int64_t bytes, std::size_t message_bytes,
              std::int64_t threshold, bool disable_group_fusion);

/// Horovod's fusion rule. The first ready tensor opens the batch; later ones join while they match
/// it (operation, dtype, factors, reduction, process set, on GPUs or not) and the sum stays within
/// `threshold` bytes. A tensor that does not match is skipped, as long as the chosen and the
/// skipped ones together stay within the threshold; then the scan ends, so that no tensor waits too
/// long. Broadcast, alltoall and barrier are never fused. `threshold` 0 means no fusion. Tensors
/// that all ranks have in shared memory do not match tensors that must be packed.
FusionPlan plan_fusion(const std::vector<TensorEntry*>& ready, std::int64_t threshold,
                       bool disable_group_fusion);

}  // namespace hvdtune
