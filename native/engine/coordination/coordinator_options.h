#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace hvdtune {

struct CoordinatorOptions {
  std::uint32_t cache_capacity = 1024;  ///< slots; 0 = descriptions always travel
  bool disable_group_fusion = false;
  /// Fusion thresholds are rounded up to a multiple of it; Horovod's is local size × 8 × 64.
  std::int64_t fusion_unit = 1;
};

/// What is to change. The rest stays as it was asked for last, whether that is in force by now or
/// still under way: changes that follow each other closely do not undo one another.
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
