#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/operation/tensor_entry.h"

namespace hvdtune {

/// Which of the ready tensors go into the next batch.
struct FusionPlan {
  std::vector<std::size_t> chosen;  ///< indices into the ready list, ascending; never empty
  /// A tensor that would have matched did not fit: the batch can grow no further.
  bool full = false;
};

/// Fills in what the rule needs to know of a tensor that has become ready.
void measure_for_fusion(TensorEntry& entry);

/// Whether all of the ready tensors fit in one batch, and more: none of them would fill it.
/// `bytes` and `message_bytes`: the sums of theirs.
bool has_room(const TensorEntry& first, std::int64_t bytes, std::size_t message_bytes,
              std::int64_t threshold, bool disable_group_fusion);

/// Horovod's fusion rule. The first ready tensor opens the batch; later ones join while they match
/// it (operation, dtype, factors, reduction, process set, on GPUs or not) and the sum stays within
/// `threshold` bytes. One that does not match is passed over as long as what was chosen and what
/// was passed over stay within the threshold together; then the scan ends, so that nothing waits
/// long for its turn. Broadcast, alltoall and barrier are never fused. `threshold` 0 means no
/// fusion. What all ranks have in shared memory does not match what has to be packed.
FusionPlan plan_fusion(const std::vector<TensorEntry*>& ready, std::int64_t threshold,
                       bool disable_group_fusion);

}  // namespace hvdtune
