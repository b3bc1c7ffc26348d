#include "transport/control/beats.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/threads/futex.h"
#include "base/threads/signals_blocked.h"

namespace hvdtune {

Beats::Beats(int socket, std::string line, Nanos pause)
    : socket_(fcntl(socket, F_DUPFD_CLOEXEC, 0)),
      line_(std::move(line)),
      pause_(pause),
      process_(getpid()) {
  if (!socket_.valid())
    throw Error(ErrorKind::kInvalidArgument, "beats: this is not an open socket");
  const SignalsBlocked signals;
  thread_ = std::thread([this] { run(); });
}

Beats::~Beats() { stop(); }

void Beats::stop() {
  if (!thread_.joinable()) return;
  if (getpid() != process_) return thread_.detach();
  stopped_.store(1);
  futex_wake(&stopped_, kWakeAll);
  thread_.join();
}

void Beats::run() const {
  while (stopped_.load() == 0) {
    const ssize_t sent =
        send(socket_.get(), line_.data(), line_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
    const Nanos next = monotonic_now() + pause_;
    while (stopped_.load() == 0 && monotonic_now() < next) futex_wait(&stopped_, 0, next);
  }
}

}  // namespace hvdtune
