#pragma once

#include <cstddef>
#include <vector>

namespace hvdtune {

/// Messages among the members of a group, by a library that is not ours (MPI, Gloo). What is sent
/// to a member arrives there in the order in which it was sent, and is matched in that order with
/// what the member receives from this one; lengths must be equal.
///
/// Nothing blocks. Sends and receives are under way until test() says that all of their *batch* are
/// done; their memory must stay as it is until then. Batches are numbered by the caller, from 0 to
/// kBatches - 1. One thread at a time. Calls throw Error(kAborted) when the library fails.
class Messenger {
 public:
  static constexpr std::size_t kBatches = 8;

  virtual ~Messenger() = default;

  virtual void send(std::size_t batch, std::size_t member, const std::byte* data,
                    std::size_t bytes) = 0;
  virtual void receive(std::size_t batch, std::size_t member, std::byte* data,
                       std::size_t bytes) = 0;

  /// Whether everything of a batch is done; moves what can be moved. Cheap enough to be polled.
  virtual bool test(std::size_t batch) = 0;

  /// Sleeps for a moment, or until something is done where the library can tell.
  virtual void doze() = 0;

  /// Members that this one still waits for in a batch: those of whom something is to come, or,
  /// where there are none, those who have not taken what they are sent.
  [[nodiscard]] virtual std::vector<std::size_t> missing(std::size_t batch) const = 0;

  /// Before the end: gives up what is under way. `failed`: so does everybody. Whether the memory
  /// may be used again: a library that cannot take a message back may still read or write it.
  virtual bool abandon(bool failed) = 0;
};

}  // namespace hvdtune
