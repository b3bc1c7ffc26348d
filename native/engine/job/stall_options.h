#pragma once

#include "base/clock.h"

namespace hvdtune {

struct StallOptions {
  bool enabled = true;
  Nanos warning = 60 * kSecond;
  Nanos shutdown = 0;  ///< 0 = never

  /// How long a rank is waited for before somebody says so; 0 = for ever.
  [[nodiscard]] Nanos patience() const { return enabled && warning > 0 ? warning : 0; }
  /// Whether what has waited for so long ends the job.
  [[nodiscard]] bool ends_job(Nanos waited) const {
    return shutdown > 0 && shutdown >= warning && waited >= shutdown;
  }
};

}  // namespace hvdtune
