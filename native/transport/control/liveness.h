#pragma once

#include <atomic>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/meeting/host_session.h"

namespace hvdtune {

/// Watches the connections to the other ranks. Notices at once when the process of one ends: by its
/// socket, which the kernel closes, and by its pidfd, because a child that the process had forked
/// may keep the socket open. Carries short messages besides, which are read even while the engine
/// is in the middle of an operation or does not run.
///
/// Its thread sleeps in poll() and costs nothing while all is well.
class LivenessWatch {
 public:
  /// All are called from the watch's thread.
  struct Events {
    /// Once for every rank that ends.
    std::function<void(int rank)> on_death;
    std::function<void(int rank, std::string_view message)> on_message = [](int, std::string_view) {
    };
    /// Whenever the thread is awake, at the latest at the time that it has returned before.
    std::function<Nanos(Nanos now)> on_turn = [](Nanos) { return kForever; };
  };

  LivenessWatch(const HostSession& session, int rank, Events events);
  /// Starts the thread; once. Events may use the object from then on.
  void start();
  ~LivenessWatch();
  LivenessWatch(const LivenessWatch&) = delete;
  LivenessWatch& operator=(const LivenessWatch&) = delete;

  /// Along the star of the host's leader. Never blocks; false when the message cannot be sent now.
  /// Any thread.
  bool send(int rank, std::string_view message) const;
  /// on_turn is to be called soon. Any thread.
  void wake() const;

  /// From now on peers may end without notice: the job is over.
  void stop();

 private:
  struct Watched {
    int rank;
    int socket;
    Fd pidfd;
  };
  void run();
  bool receive_all(const Watched& peer);

  const bool has_turns_;  // also where there is nobody to watch
  std::vector<Watched> watched_;
  std::vector<int> sockets_;  // by rank; -1 where there is none
  Events events_;
  std::vector<char> message_;
  Fd wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hvdtune
