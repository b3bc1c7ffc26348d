#pragma once

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "wire/messages.h"

namespace hvdtune {

/// The coordinator's record of one name in one process set.
struct TensorEntry {
  std::string key;  ///< of the coordinator's table
  wire::Request description;
  /// Rank that `description` is from.
  int described_by = 0;
  wire::Slot slot = wire::kNoSlot;
  std::list<TensorEntry*>::iterator recency;  ///< valid while there is a slot
  std::size_t members = 0;
  std::uint64_t last_step = 0;  ///< StepLog::step() when it was last scheduled; 0 = not yet

  // The current round; cleared when it is scheduled or rejected.
  std::size_t announced = 0;
  std::size_t registered = 0;         ///< number of those ranks that have it in shared memory
  std::vector<bool> by;               ///< [global rank] has announced
  std::vector<wire::Ticket> tickets;  ///< [global rank]
  std::vector<Nanos> times;           ///< [global rank] of its announcement
  Nanos first_time = 0;
  Nanos last_time = 0;  ///< the latest announcement so far, and its rank
  int last_rank = 0;
  Nanos ready_time = 0;
  // Known once it is ready (measure_for_fusion).
  std::int64_t fused_bytes = 0;   ///< bytes in the fusion buffer
  std::size_t message_bytes = 0;  ///< approximate bytes in the batch's message
  /// Descriptions that differ from `description` (allgather's first dimension, or an error).
  std::vector<std::pair<int, wire::Request>> variants;
  bool ready = false;
  /// Ranks that have joined and did not announce it: they contribute zeros.
  std::vector<int> absent;

  // For the observer: the number of its name in a recording, and which file. 0 = none.
  mutable std::uint32_t recorded_name = 0;
  mutable std::uint32_t recorded_in = 0;

  /// Whether it can be reduced in place, without packing.
  [[nodiscard]] bool in_shared_memory() const { return registered > 0 && registered == members; }
};

}  // namespace hvdtune
