#include "engine/parts.h"

#include <utility>

namespace hvdtune {
namespace {

CoordinatorOptions with_fusion_unit(const EngineOptions& options) {
  CoordinatorOptions coordinator = options.coordinator;
  coordinator.fusion_unit = std::int64_t{options.local_size} * 8 * 64;
  return coordinator;
}

}  // namespace

Engine::Parts::Parts(EngineOptions given)
    : options(std::move(given)),
      job(options.meeting, options.network, options.in_shared_memory, options.spin),
      callers(job.doorbell),
      status(job.hosts()),
      gpus(options.gpus),
      submissions(job, options.process_sets, options.settings, options.writing, drive_mutex,
                  callers, completions),
      recording(job, drive_mutex, submissions, options.recording, options.watch_steps,
                [this] { watch.start_clock(); }),
      stall_reports(job, options.stall, recording.recorder(), status),
      watch(job, submissions, recording.recorder(), stall_reports, options.host_fanout,
            options.clock_shift),
      coordination(job.is_coordinator() ? std::make_unique<Coordination>(
                                              job, recording, status, callers, completions,
                                              with_fusion_unit(options), submissions.sets(),
                                              options.settings, options.stall, options.straggler)
                                        : nullptr),
      gpu_batches(job, gpus, submissions, recording, status, stall_reports, callers),
      reader({.job = job,
              .submissions = submissions,
              .recording = recording,
              .gpu_batches = gpu_batches,
              .gpus = gpus,
              .status = status,
              .reports = stall_reports,
              .stack_query = watch.stack_query(),
              .callers = callers,
              .steps = steps()},
             {.data_plane = options.data_plane,
              .writing = options.writing,
              .reduction_threads = options.reduction_threads}),
      progress(job, submissions, coordination.get(), reader, gpu_batches, watch.stack_query()),
      drive(job, drive_mutex, callers, progress, completions, recording.recorder()) {
  if (coordination) answers.emplace(job, status, *coordination, submissions, watch.stacks());
}

}  // namespace hvdtune
