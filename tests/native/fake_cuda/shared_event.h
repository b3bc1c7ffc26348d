#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace fake_cuda {

/// An event that several processes know: a page of a file in memory. Who made it records it; all
/// may wait for it.
class SharedEvent {
 public:
  static std::shared_ptr<SharedEvent> create();
  /// Null where the process is gone.
  static std::shared_ptr<SharedEvent> open(int pid, int fd);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// The number of the next record, and that it is reached.
  std::uint64_t record() const { return ++state_->recorded; }
  void reach(std::uint64_t number) const { state_->reached = number; }
  /// The last record's number.
  [[nodiscard]] std::uint64_t recorded() const { return state_->recorded; }
  [[nodiscard]] bool done() const { return state_->reached >= state_->recorded; }
  /// Until that record is reached, or whoever made the event is dead.
  void wait(std::uint64_t number) const;

 private:
  struct State {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> reached;
    std::atomic<int> pid;
  };

  SharedEvent(int fd, State* state);

  int fd_;     ///< -1: of another process
  int owner_;  ///< pidfd of who made it; -1: this process
  State* state_;
};

}  // namespace fake_cuda
