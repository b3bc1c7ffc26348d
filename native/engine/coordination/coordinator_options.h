#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace hvdtune {

struct CoordinatorOptions {
  std::uint32_t cache_capacity = 1024;  ///< slots; 0 = ranks always send descriptions
  bool disable_group_fusion = false;
  /// Fusion thresholds are rounded up to a multiple of it; Horovod's is local size × 8 × 64.
  std::int64_t fusion_unit = 1;
};

/// The settings to change. All others keep their last requested value, even if that is not in force
/// yet, so that changes in quick succession do not undo each other.
struct SettingsChange {
  std::optional<std::int64_t> fusion_threshold = {};
  std::optional<Nanos> cycle_time = {};
  std::optional<std::int64_t> chunk_size = {};
  std::optional<std::int64_t> one_shot_limit = {};
  std::optional<std::int64_t> nccl_bypass_limit = {};
  std::optional<bool> hierarchical_allreduce = {};
  std::optional<bool> hierarchical_allgather = {};
  std::optional<std::int32_t> nccl_streams = {};
};

}  // namespace hvdtune
