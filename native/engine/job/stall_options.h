#pragma once

#include "base/clock.h"

namespace hvdtune {

struct StallOptions {
  bool enabled = true;
  Nanos warning = 60 * kSecond;
  Nanos shutdown = 0;  ///< 0 = never

  /// How long ranks wait for another before they report it; 0 = for ever.
  [[nodiscard]] Nanos patience() const { return enabled && warning > 0 ? warning : 0; }
  /// Whether a wait of this length ends the job.
  [[nodiscard]] bool ends_job(Nanos waited) const {
    return shutdown > 0 && shutdown >= warning && waited >= shutdown;
  }
};

}  // namespace hvdtune
