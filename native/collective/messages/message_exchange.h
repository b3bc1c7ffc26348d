#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/threads/patience.h"
#include "collective/communicator.h"
#include "transport/messengers/messenger.h"

namespace hvdtune {

/// The members that exchange messages, and how this member learns that the job is over.
struct MessageGroup {
  std::vector<int> ranks;  ///< the members' global ranks, in the order in which sums are taken
  int index = 0;           ///< this rank's place among them
  Patience patience;
  /// Throws Error(kAborted) once the job is aborted. Called at the beginning of an operation and
  /// while waiting.
  std::function<void()> check;
};

/// The messages of one operation at a time, and the memory that they are sent from and received in.
/// That memory belongs to this class and is never a tensor's: a message that is under way when the
/// job is aborted cannot be cancelled, and may still be written long after its tensor has been
/// freed.
class MessageExchange {
 public:
  MessageExchange(std::unique_ptr<Messenger> messenger, MessageGroup group);
  ~MessageExchange();
  MessageExchange(const MessageExchange&) = delete;
  MessageExchange& operator=(const MessageExchange&) = delete;

  [[nodiscard]] std::size_t members() const { return group_.ranks.size(); }
  [[nodiscard]] std::size_t self() const { return static_cast<std::size_t>(group_.index); }
  [[nodiscard]] std::size_t others() const { return members() - 1; }
  /// Calls visit(member) for every other member, beginning after this one, so that members begin
  /// with different ones.
  template <typename Visit>
  void for_others(Visit&& visit) const {
    for (std::size_t turn = 1; turn < members(); ++turn) visit((self() + turn) % members());
  }

  /// Memory of an operation, `bytes` long; its earlier content is lost. There are two kinds,
  /// because an operation needs both at once.
  std::byte* outgoing(std::size_t bytes) { return grown(outgoing_, bytes); }
  std::byte* incoming(std::size_t bytes) { return grown(incoming_, bytes); }

  /// Call it at the beginning of an operation. Throws Error(kAborted).
  void begin() const { group_.check(); }

  /// Messages of no bytes are not sent. The memory must be from outgoing() or incoming().
  void send(std::size_t batch, std::size_t member, const std::byte* data, std::size_t bytes);
  void receive(std::size_t batch, std::size_t member, std::byte* data, std::size_t bytes);
  /// Returns after all of the batch is done. Throws Error(kAborted).
  void wait(std::size_t batch);

  void time_waits(bool timed);
  [[nodiscard]] Nanos waited() const { return waited_; }
  void show_waiting(std::atomic<Nanos>& seen) { seen_ = &seen; }
  void report_absence(Nanos limit, AbsenceReport report);

 private:
  using Memory = std::unique_ptr<std::vector<std::byte>>;

  static std::byte* grown(Memory& memory, std::size_t bytes);
  template <typename Call>
  auto calling(Call&& call);
  void sleep(std::size_t batch);
  void look_for_absent(std::size_t batch, Nanos began);

  std::unique_ptr<Messenger> messenger_;
  MessageGroup group_;
  Memory outgoing_;
  Memory incoming_;
  bool timed_ = false;
  Nanos waited_ = 0;
  Nanos absence_limit_ = kForever;
  Nanos reported_ = 0;
  std::atomic<Nanos>* seen_ = nullptr;  // where to note the time while it waits
  AbsenceReport report_;
};

}  // namespace hvdtune
