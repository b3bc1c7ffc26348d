#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "transport/bootstrap.h"

namespace hvdtune {

/// Notices at once when the process of another rank ends: by its socket, which the kernel closes,
/// and by its pidfd, because a child that the process had forked may keep the socket open.
///
/// Its thread sleeps in poll() and costs nothing while all is well.
class LivenessWatch {
 public:
  /// `on_death(rank)` is called from the watch's thread, once for every rank that ends.
  LivenessWatch(const HostSession& session, int rank, std::function<void(int)> on_death);
  ~LivenessWatch();
  LivenessWatch(const LivenessWatch&) = delete;
  LivenessWatch& operator=(const LivenessWatch&) = delete;

  /// From now on peers may end without notice: the job is over.
  void stop();

 private:
  struct Watched {
    int rank;
    int socket;
    Fd pidfd;
  };
  void run();

  std::vector<Watched> watched_;
  std::function<void(int)> on_death_;
  Fd wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hvdtune
