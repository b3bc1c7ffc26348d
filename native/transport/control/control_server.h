#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "transport/sockets/unix_socket.h"

namespace hvdtune {

/// Answers other processes of the same user, on an abstract Unix socket. A question is one message.
/// An answer is one or more messages, up to the end of the connection. Its first byte is '+', or
/// '-' before a sentence that says why there is no answer. Processes of other users get only '-'
/// and such a sentence.
///
/// Its thread sleeps in poll() until a process connects.
class ControlServer {
 public:
  /// The server's thread calls `answer` for one question at a time; if it throws, the exception's
  /// text is the sentence. If the name is taken, running() is false.
  ControlServer(const std::string& name, std::function<std::string(std::string_view)> answer);
  ~ControlServer() { stop(); }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  [[nodiscard]] bool running() const { return listener_.valid(); }
  /// Waits for an answer under way: the caller must not hold a lock that `answer` needs.
  void stop();
  /// For a forked child, which does not have the thread: closes the socket, so that the name does
  /// not outlive the parent.
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
