#include "transport/control/control_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"
#include "base/threads/signals_blocked.h"

namespace hvdtune {
namespace {

// A client that connects and says nothing, or does not read, can delay other clients, and the job's
// end, only for this long.
constexpr Nanos kPatience = 2 * kSecond;
// Without free descriptors accept() fails while poll() keeps reporting the waiting client, so the
// server pauses.
constexpr int kBackoffMs = 100;
constexpr std::size_t kPiece = 32 << 10;

}  // namespace

ControlServer::ControlServer(const std::string& name,
                             std::function<std::string(std::string_view)> answer)
    : answer_(std::move(answer)),
      listener_(unix_socket::listen(name)),
      wakeup_(eventfd(0, EFD_CLOEXEC)) {
  if (!listener_.valid()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "hvdtune-control");
}

void ControlServer::stop() {
  stopping_ = true;
  const std::uint64_t one = 1;
  if (wakeup_.valid()) [[maybe_unused]]
    const auto written = write(wakeup_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listener_ = Fd();
}

void ControlServer::abandon() const {
  if (listener_.valid()) close(listener_.get());
}

void ControlServer::run() {
  while (!stopping_) {
    std::array<pollfd, 2> entries{{{wakeup_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), -1) <= 0) continue;
    if (stopping_) return;
    try {
      const Fd connection = unix_socket::accept(listener_, monotonic_now());
      if (!connection.valid()) continue;
      serve(connection);
      // A child that was forked meanwhile also has the connection open, so closing it here would
      // not end it.
      ::shutdown(connection.get(), SHUT_RDWR);
    } catch (const std::exception&) {  // only this client is affected
      poll(entries.data(), 1, kBackoffMs);
    }
  }
}

void ControlServer::serve(const Fd& connection) const {
  const timeval patience{kPatience / kSecond, 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  std::string answer;
  if (unix_socket::peer_identity(connection).uid != getuid()) {
    answer = "-the job belongs to another user";
  } else {
    std::string question;
    bool timed_out = false;
    if (!unix_socket::receive(connection, question, monotonic_now() + kPatience, timed_out)) return;
    try {
      answer = "+" + answer_(question);
    } catch (const std::exception& problem) {
      answer = std::string("-") + problem.what();
    }
  }
  const Nanos deadline = monotonic_now() + kPatience;
  for (std::size_t at = 0; at < answer.size() && monotonic_now() < deadline; at += kPiece) {
    if (!unix_socket::send(connection, std::string_view(answer).substr(at, kPiece))) return;
  }
}

}  // namespace hvdtune
