// The running engine of this process, for kernels and custom calls, which a framework calls from
// its own threads without Python.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace hvdtune::faces {

/// From now on running_engine() returns this one.
void begin_running(std::shared_ptr<Engine> engine);
/// From now on there is no engine: running_engine() throws an Error(kNotInitialized) with
/// `absence`.
void end_running(const std::string& absence);

/// The running engine. The object exists as long as the reference, even if shutdown() is called
/// meanwhile: operations under way then, and those submitted later, end with the job's end as their
/// error. Keep the reference for one operation, from submit() to take(). Throws
/// Error(kNotInitialized), with a sentence for the user, before init, after shutdown and in a fork
/// of a rank. Any thread.
[[nodiscard]] std::shared_ptr<Engine> running_engine();

}  // namespace hvdtune::faces
