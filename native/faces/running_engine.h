// The engine that runs in this process, for what a framework calls from its own threads, without
// Python: kernels and custom calls.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace hvdtune::faces {

/// From now on running_engine() returns this one.
void begin_running(std::shared_ptr<Engine> engine);
/// From now on there is none: running_engine() throws an Error(kNotInitialized) with `absence`.
void end_running(const std::string& absence);

/// The engine. The object lives as long as the reference, whoever calls shutdown() meanwhile: what
/// is under way then, and what is submitted later, ends with the job's end as its error. Keep the
/// reference for one operation, from submit() to take().
/// Throws Error(kNotInitialized), with a sentence for the user, before init, after shutdown and in
/// a fork of a rank. Any thread.
[[nodiscard]] std::shared_ptr<Engine> running_engine();

}  // namespace hvdtune::faces
