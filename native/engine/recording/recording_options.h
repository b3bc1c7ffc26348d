#pragma once

#include <cstddef>
#include <string>

#include "observe/capture/capture.h"

namespace hvdtune {

/// How a job is recorded; the start of a recording gives the file.
struct RecordingOptions {
  /// Rank 0 alone writes Horovod's layout (Timeline); otherwise ranks write captures.
  bool horovod_format = true;
  bool all_ranks = true;  ///< of captures
  std::string job;        ///< its name, for the identity
  /// Members of the identity, as JSON without braces, except for the job and the time.
  std::string identity = "\"rank\":0";
  std::size_t buffer_bytes = capture::Capture::kDefaultBytes;
  std::size_t file_limit = 0;  ///< bytes of a rank's file; 0 = no limit
  capture::Window window;      ///< of the recording that begins with the job
};

}  // namespace hvdtune
