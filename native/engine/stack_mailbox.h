#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "transport/arena.h"

namespace hvdtune {

/// Carries a Python stack from the thread that obtained it to the engine, whichever of the two
/// lives longer.
class StackMailbox {
 public:
  StackMailbox(std::shared_ptr<Arena> arena, int rank) : arena_(std::move(arena)), rank_(rank) {}

  /// Any thread; wakes the engine.
  void deliver(std::string text) {
    {
      const std::lock_guard lock(mutex_);
      text_ = std::move(text);
    }
    arena_->doorbell(rank_).wake_all();
  }

  std::optional<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(text_, std::nullopt);
  }

 private:
  std::shared_ptr<Arena> arena_;
  int rank_;
  std::mutex mutex_;
  std::optional<std::string> text_;
};

}  // namespace hvdtune
