#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "transport/sockets/unix_socket.h"

namespace hvdtune {

/// Answers other processes of the same user, on an abstract Unix socket. A question is one message,
/// an answer one or more, up to the end of the connection; its first byte is '+', or '-' before a
/// sentence that says why there is none. Whoever is not of this process's user gets only that.
///
/// Its thread sleeps in poll() until somebody comes.
class ControlServer {
 public:
  /// `answer` is called on the server's thread, for one question at a time; what it throws is the
  /// sentence. A name that is taken: running() is false.
  ControlServer(const std::string& name, std::function<std::string(std::string_view)> answer);
  ~ControlServer() { stop(); }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  [[nodiscard]] bool running() const { return listener_.valid(); }
  /// Waits for an answer under way: the caller must not hold what `answer` needs.
  void stop();
  /// For a forked child, which has no thread: the name is not to outlive the parent.
  void abandon() const;

 private:
  void run();
  void serve(const Fd& connection) const;

  std::function<std::string(std::string_view)> answer_;
  Fd listener_;
  Fd wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hvdtune
