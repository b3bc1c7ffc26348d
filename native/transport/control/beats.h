#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "base/clock.h"

namespace hvdtune {

/// Tells whoever reads a socket, again and again, that this process runs. A thread of its own does
/// it, which needs nothing that the process may hold for long, such as Python's lock.
class Beats {
 public:
  /// Sends `line`, whole, every `pause`, from now on until stop(). The socket stays the caller's,
  /// who may send, too, and must close it after stop(). A line for which there is no room is left
  /// out; if the reader is gone, nothing is sent any more.
  Beats(int socket, std::string line, Nanos pause);
  /// stop()
  ~Beats();
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

  /// Returns when the thread has ended. Idempotent; one thread at a time. In a fork, which does not
  /// have the thread, nothing.
  void stop();

 private:
  void run() const;

  const int socket_;
  const std::string line_;
  const Nanos pause_;
  const int process_;
  std::atomic<std::uint32_t> stopped_{0};
  std::thread thread_;
};

}  // namespace hvdtune
