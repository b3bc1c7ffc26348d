#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collective/communicator_factory.h"
#include "engine/coordination/coordinator_options.h"
#include "engine/execution/device_options.h"
#include "engine/job/stall_options.h"
#include "engine/recording/recording_options.h"
#include "observe/stragglers/blame.h"
#include "transport/meeting/meet.h"
#include "wire/messages.h"

namespace hvdtune {

struct EngineOptions {
  MeetingOptions meeting;
  std::optional<NetworkOptions> network;  ///< none: all ranks are on this host
  /// To how many hosts one passes the schedule on (HostTree). All ranks say the same.
  int host_fanout = 15;
  int local_size = 1;
  CoordinatorOptions coordinator;
  wire::RuntimeSettings settings;
  /// How long a blocked caller stays awake (see Patience); negative = chosen by the engine.
  Nanos spin = -1;
  /// CPU for the communication thread; negative = not pinned.
  int affinity = -1;
  Writing writing = Writing::kMeasured;  ///< this rank's; the others' may differ
  /// Threads that help this rank to reduce what goes through shared memory, at most kMostHelpers;
  /// negative = as many as fit. The others' may differ. Without shared memory, or anybody to share
  /// it with, there are none.
  int reduction_threads = 0;
  /// Global ranks of the process sets 1, 2, … (set 0 is the whole job), each ascending.
  std::vector<std::vector<int>> process_sets;
  StallOptions stall;
  StragglerOptions straggler;
  /// Added to this rank's clock where ranks compare theirs; for tests.
  Nanos clock_shift = 0;
  /// Recorded from the first operation on; empty = not yet.
  std::string timeline;
  bool timeline_mark_cycles = false;
  RecordingOptions recording;
  /// steps() is to see everything: nothing goes past the coordinator.
  bool watch_steps = false;
  /// The data plane.
  CommunicatorFactory data_plane = make_own_communicator;
  /// It is shared memory, where members have some in common: what goes through that without a
  /// communicator (direct rounds, reductions in place) may do so.
  bool in_shared_memory = true;
  DeviceOptions gpus;
};

}  // namespace hvdtune
