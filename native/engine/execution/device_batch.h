#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collective/gpu/device_communicator.h"
#include "engine/operation/operation.h"
#include "wire/messages.h"

namespace hvdtune {

/// A batch that a GPU works on; all of it is enqueued.
struct DeviceBatch {
  wire::Schedule schedule;
  std::vector<OperationPtr> operations;
  std::uint64_t tensors = 0;                     ///< number of them in the schedule's entry
  std::shared_ptr<DeviceCommunicator> exchange;  ///< that moves the data
  std::vector<DeviceMemory> kept;                ///< memory that is needed until it is done
  bool recorded = false;                         ///< by a capture, when it was enqueued
  std::uint64_t epoch = 0;                       ///< of the settings then
  bool announced_done = false;                   ///< its operations are done already

  Nanos connecting = 0;  ///< when members began and ended to connect for it; 0 = they had before
  Nanos connected = 0;
  Nanos launched = 0;  ///< when it was enqueued
  SharedEvent end;
  // If recorded: the tensors were ready, the fusion buffer was filled, the last data had arrived.
  // These events are timed, and so is `end`.
  SharedEvent begin;
  SharedEvent packed;
  SharedEvent unpacking;

  int reports = 0;  ///< number of reports that it takes long

  // Afterwards.
  Status status;
  Nanos ended = 0;  ///< when that was noticed
};

/// On this host's clock.
struct DeviceTimes {
  Nanos begin = 0;
  Nanos packed = 0;
  Nanos unpacking = 0;
  Nanos end = 0;
};

/// Times of a batch that has succeeded; if it was not recorded, `begin` is when it was enqueued.
/// Throws Error(kAborted).
DeviceTimes times_of(const DeviceBatch& batch);

}  // namespace hvdtune
