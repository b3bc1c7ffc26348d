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
  /// Fan-out of the tree of hosts (HostTree). The same on all ranks.
  int host_fanout = 15;
  int local_size = 1;
  CoordinatorOptions coordinator;
  wire::RuntimeSettings settings;
  /// How long a blocked caller stays awake (see Patience); negative = chosen by the engine.
  Nanos spin = -1;
  /// CPU for the communication thread; negative = not pinned.
  int affinity = -1;
  Writing writing = Writing::kMeasured;  ///< this rank's; the others' may differ
  /// Threads that help this rank with reductions in shared memory, at most kMostHelpers; negative =
  /// as many as fit. Other ranks may have other numbers. There are none without shared memory, or
  /// without another rank that shares it.
  int reduction_threads = 0;
  /// Global ranks of the process sets 1, 2, … (set 0 is the whole job), each ascending.
  std::vector<std::vector<int>> process_sets;
  StallOptions stall;
  StragglerOptions straggler;
  /// Added to this rank's clock when ranks compare clocks; for tests.
  Nanos clock_shift = 0;
  /// File of a recording from the first operation on; empty = none yet.
  std::string timeline;
  bool timeline_mark_cycles = false;
  RecordingOptions recording;
  /// steps() must see everything, so no operation bypasses the coordinator.
  bool watch_steps = false;
  /// The data plane.
  CommunicatorFactory data_plane = make_own_communicator;
  /// Whether the data plane is shared memory between members that have it in common. If so, direct
  /// rounds and reductions in place, which use it without a communicator, are allowed.
  bool in_shared_memory = true;
  DeviceOptions gpus;
};

}  // namespace hvdtune
