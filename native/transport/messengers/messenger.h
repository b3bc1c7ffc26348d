#pragma once

#include <cstddef>
#include <vector>

namespace hvdtune {

/// Messages among the members of a group, through an external library (MPI, Gloo). A member's
/// messages to another one arrive in the order in which it sent them, and are matched in that order
/// with the other's receives from it; lengths must be equal.
///
/// Nothing blocks. Sends and receives are under way until test() says that all of their *batch* are
/// done; their memory must not be freed or changed until then. The caller numbers batches from 0 to
/// kBatches - 1. One thread at a time. Calls throw Error(kAborted) if the library fails.
class Messenger {
 public:
  static constexpr std::size_t kBatches = 8;

  virtual ~Messenger() = default;

  virtual void send(std::size_t batch, std::size_t member, const std::byte* data,
                    std::size_t bytes) = 0;
  virtual void receive(std::size_t batch, std::size_t member, std::byte* data,
                       std::size_t bytes) = 0;

  /// Whether everything of a batch is done; also lets the library make progress. Cheap enough to be
  /// polled.
  virtual bool test(std::size_t batch) = 0;

  /// Sleeps for a moment, or, if the library can tell, until something is done.
  virtual void doze() = 0;

  /// Members that this one still waits for in a batch: those whose messages have not arrived, or,
  /// if there are none, those that have not received this member's messages.
  [[nodiscard]] virtual std::vector<std::size_t> missing(std::size_t batch) const = 0;

  /// Called before the end: gives up all sends and receives under way. `failed`: all members do so.
  /// Returns whether their memory may be used again: a library that cannot cancel a message may
  /// still read or write it.
  virtual bool abandon(bool failed) = 0;
};

}  // namespace hvdtune
