#include "transport/liveness.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace hvdtune {

LivenessWatch::LivenessWatch(const HostSession& session, int rank,
                             std::function<void(int)> on_death)
    : on_death_(std::move(on_death)), wakeup_(eventfd(0, EFD_CLOEXEC)) {
  for (std::size_t peer = 0; peer < session.sockets.size(); ++peer) {
    if (static_cast<int>(peer) == rank || !session.sockets[peer].valid()) continue;
    // Without pidfd_open (Linux < 5.3) the socket alone is watched.
    const auto pid = session.peers[peer].pid;
    Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    watched_.push_back({static_cast<int>(peer), session.sockets[peer].get(), std::move(pidfd)});
  }
  if (!watched_.empty()) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "hvdtune-watch");
  }
}

LivenessWatch::~LivenessWatch() { stop(); }

void LivenessWatch::stop() {
  stopping_ = true;
  const std::uint64_t one = 1;
  if (wakeup_.valid()) [[maybe_unused]]
    const auto written = write(wakeup_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void LivenessWatch::run() {
  while (!stopping_ && !watched_.empty()) {
    std::vector<pollfd> entries{{wakeup_.get(), POLLIN, 0}};
    for (const Watched& peer : watched_) {
      entries.push_back({peer.socket, POLLIN | POLLRDHUP, 0});
      entries.push_back({peer.pidfd.get(), POLLIN, 0});  // poll() skips negative descriptors
    }
    if (poll(entries.data(), entries.size(), -1) <= 0) continue;
    if (stopping_) return;
    for (std::size_t i = watched_.size(); i-- > 0;) {
      if (entries[1 + 2 * i].revents == 0 && entries[2 + 2 * i].revents == 0) continue;
      const int rank = watched_[i].rank;
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
      on_death_(rank);
    }
  }
}

}  // namespace hvdtune
