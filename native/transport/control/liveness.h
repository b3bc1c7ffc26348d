#pragma once

#include <atomic>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/meeting/host_session.h"

namespace hvdtune {

/// Watches the connections to the other ranks. Notices at once if the process of a rank ends: the
/// kernel closes its socket and signals its pidfd. The pidfd is needed because a child that the
/// process has forked may keep the socket open. Also carries short messages, which are read even
/// while the engine is in the middle of an operation or does not run.
///
/// Its thread sleeps in poll() and costs nothing while nothing happens.
class LivenessWatch {
 public:
  /// The watch's thread calls all of them.
  struct Events {
    /// Once for every rank that ends.
    std::function<void(int rank)> on_death;
    std::function<void(int rank, std::string_view message)> on_message = [](int, std::string_view) {
    };
    /// Called whenever the thread is awake, at the latest at the time that its previous call has
    /// returned.
    std::function<Nanos(Nanos now)> on_turn = [](Nanos) { return kForever; };
  };

  LivenessWatch(const HostSession& session, int rank, Events events);
  /// Starts the thread; once. Events may use the object from then on.
  void start();
  ~LivenessWatch();
  LivenessWatch(const LivenessWatch&) = delete;
  LivenessWatch& operator=(const LivenessWatch&) = delete;

  /// Sends a message to a rank of this host; only between the leader and another rank. Never
  /// blocks; false if the message cannot be sent now. Any thread.
  bool send(int rank, std::string_view message) const;
  /// Makes the thread call on_turn soon. Any thread.
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

  const bool has_turns_;  // even if there is nobody to watch
  std::vector<Watched> watched_;
  std::vector<int> sockets_;  // by rank; -1 if there is none
  Events events_;
  std::vector<char> message_;
  Fd wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hvdtune
