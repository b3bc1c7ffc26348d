#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace hvdtune {

/// A thread that calls MPI regularly while no other thread does.
///
/// Most MPIs move messages only while they are called. A send that MPI has reported as done may
/// still be in its queues; if the sender then waits for something other than MPI (a neighbour in
/// shared memory, the next entry of the schedule), the receiver waits for ever. So this thread
/// calls MPI from the first user on until a while after the last one has left.
///
/// All calls of a job are made under `calling()`: MPI_THREAD_SERIALIZED is enough.
class MpiProgress {
 public:
  /// `advance` makes an MPI call that moves messages, while no other thread calls MPI; it returns
  /// false if there is nothing left to move. `linger`: how long to go on after the last user has
  /// left, because others may still wait for its last messages.
  MpiProgress(std::function<bool()> advance, Nanos linger)
      : advance_(std::move(advance)), linger_(linger) {}
  ~MpiProgress() { rest(); }
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;

  /// For as long as it is held, this thread alone calls MPI.
  [[nodiscard]] std::unique_lock<std::mutex> calling() {
    std::unique_lock lock(mutex_);
    ++calls_;
    return lock;
  }

  void enter();
  void leave();
  /// Stops the calls of MPI until a user enters again. Returns after the last call.
  void rest();

 private:
  void run();

  std::function<bool()> advance_;
  Nanos linger_;
  std::mutex mutex_;  // guards what follows, and MPI
  std::condition_variable changed_;
  std::uint64_t calls_ = 0;
  int users_ = 0;
  Nanos until_ = 0;  // if there are no users
  bool resting_ = false;
  bool running_ = false;
  pid_t process_ = 0;  // whose thread it is: a forked child has none
  std::thread thread_;
};

}  // namespace hvdtune
