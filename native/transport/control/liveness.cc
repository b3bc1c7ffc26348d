#include "transport/control/liveness.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "transport/sockets/unix_socket.h"

namespace hvdtune {
namespace {

// Most messages read from one peer in a row, so that a busy peer does not keep the others waiting.
constexpr int kMessagesPerTurn = 64;

/// For poll(): rounded up, and not so long that it overflows.
int milliseconds_until(Nanos deadline) {
  if (deadline == kForever) return -1;
  const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
  return static_cast<int>(std::min<Nanos>(left / kMillisecond + 1, 3'600'000));
}

}  // namespace

LivenessWatch::LivenessWatch(const HostSession& session, int rank, Events events)
    : has_turns_(session.across_hosts()),
      sockets_(session.peers.size(), -1),
      events_(std::move(events)),
      message_(unix_socket::kMaxMessage),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (std::size_t peer = 0; peer < session.sockets.size(); ++peer) {
    if (static_cast<int>(peer) == rank || !session.sockets[peer].valid()) continue;
    // The socket alone is watched without pidfd_open (Linux < 5.3), and if the kernel knows the
    // process by no pid here, or even another process by this one.
    const PeerInfo& process = session.peers[peer];
    Fd pidfd(process.here ? static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)) : -1);
    sockets_[peer] = session.sockets[peer].get();
    watched_.push_back({static_cast<int>(peer), session.sockets[peer].get(), std::move(pidfd)});
  }
}

void LivenessWatch::start() {
  if (!watched_.empty() || has_turns_) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "hvdtune-watch");
  }
}

LivenessWatch::~LivenessWatch() { stop(); }

void LivenessWatch::wake() const {
  const std::uint64_t one = 1;
  if (wakeup_.valid()) [[maybe_unused]]
    const auto written = write(wakeup_.get(), &one, sizeof(one));
}

void LivenessWatch::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

bool LivenessWatch::send(int rank, std::string_view message) const {
  const int socket = sockets_[static_cast<std::size_t>(rank)];
  if (socket < 0) return false;
  ssize_t sent = -1;
  do {
    sent = ::send(socket, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

/// False when the peer has hung up.
bool LivenessWatch::receive_all(const Watched& peer) {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    const ssize_t bytes = recv(peer.socket, message_.data(), message_.size(), MSG_DONTWAIT);
    if (bytes == 0) return false;
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    events_.on_message(peer.rank, {message_.data(), static_cast<std::size_t>(bytes)});
  }
  return true;
}

void LivenessWatch::run() {
  while (!stopping_ && (!watched_.empty() || has_turns_)) {
    const Nanos deadline = events_.on_turn(monotonic_now());
    std::vector<pollfd> entries{{wakeup_.get(), POLLIN, 0}};
    for (const Watched& peer : watched_) {
      entries.push_back({peer.socket, POLLIN | POLLRDHUP, 0});
      entries.push_back({peer.pidfd.get(), POLLIN, 0});  // poll() skips negative descriptors
    }
    if (poll(entries.data(), entries.size(), milliseconds_until(deadline)) <= 0) continue;
    if (stopping_) return;
    if (entries[0].revents != 0) {
      std::uint64_t times = 0;
      [[maybe_unused]] const auto taken = read(wakeup_.get(), &times, sizeof(times));
    }
    for (std::size_t i = watched_.size(); i-- > 0;) {
      const auto at_socket = entries[1 + 2 * i].revents;
      bool ended = entries[2 + 2 * i].revents != 0 || (at_socket & ~POLLIN) != 0;
      if ((at_socket & POLLIN) != 0 && !receive_all(watched_[i])) ended = true;
      if (!ended) continue;
      const int rank = watched_[i].rank;
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
      events_.on_death(rank);
    }
  }
}

}  // namespace hvdtune
