#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"

namespace hvdtune {

/// Tells the reader of a socket, again and again, that this process runs. It does so in its own
/// thread, which needs nothing that the process may hold for long, such as Python's lock.
class Beats {
 public:
  /// Sends `line`, whole, every `pause`, from now on until stop(). The caller may also send, and
  /// may close its socket: the connection stays open. Skips a line if there is no room for it, and
  /// sends nothing more once the reader is gone. Throws Error(kInvalidArgument) if `socket` is not
  /// a socket.
  Beats(int socket, std::string line, Nanos pause);
  /// stop()
  ~Beats();
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

  /// Returns after the thread has ended. Idempotent; one thread at a time. Does nothing in a forked
  /// child, which does not have the thread.
  void stop();

 private:
  void run() const;

  const Fd socket_;
  const std::string line_;
  const Nanos pause_;
  const int process_;
  std::atomic<std::uint32_t> stopped_{0};
  std::thread thread_;
};

}  // namespace hvdtune
