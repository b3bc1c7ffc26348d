#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/threads/patience.h"
#include "collective/communicator.h"
#include "collective/kernels/segments.h"
#include "transport/sockets/mesh.h"

namespace hvdtune {

/// The transfers of an operation over sockets: bytes to and from each other member, in order, all
/// members at once. Within an operation the caller queues memory to be sent or filled, and waits
/// for the parts that it needs; all transfers proceed during its waits, in its own thread. Nothing
/// is copied on the way to the kernel.
///
/// A member's bytes for another one are preceded by a header, which identifies the operation and
/// the number of bytes that follow. So if members are not in the same operation, which only a bug
/// can cause, they end with an error instead of wrong numbers.
///
/// Belongs to one thread at a time. Several objects may use the same mesh, one after the other: an
/// operation reads all its own bytes from the connections, and no others.
class SocketStreams {
 public:
  /// `members`: ranks, in the same order on all members; `index`: this one's place; `number`: the
  /// same on all members, and different between communicators that exist at once.
  SocketStreams(std::shared_ptr<Mesh> mesh, std::vector<int> members, int index, int number,
                Patience patience);

  [[nodiscard]] std::size_t members() const { return peers_.size(); }
  [[nodiscard]] std::size_t self() const { return self_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }

  /// Begins a new operation of kind `kind`. Throws Error(kAborted) if the job was aborted, or if an
  /// exception has interrupted the last operation.
  void begin(OpKind kind);
  /// Ends the operation. All its transfers must be done.
  void end();
  /// Queues the header for `member`; call it before send() to it.
  void open(std::size_t member, std::size_t bytes_to_follow);
  /// Expects `member`'s header; call it before receive() from it.
  void expect(std::size_t member);
  /// Checks that the other side has announced `bytes` bytes. Its header must have arrived.
  void check(std::size_t member, std::size_t bytes) const;

  /// Queues memory, which must not change until it is sent.
  void send(std::size_t member, const std::byte* data, std::size_t bytes);
  void send(std::size_t member, const SegmentList& data) { send(member, data, 0, data.bytes()); }
  void send(std::size_t member, const SegmentList& data, std::size_t begin, std::size_t bytes);
  /// Queues memory to be filled.
  void receive(std::size_t member, std::byte* to, std::size_t bytes);
  void receive(std::size_t member, const SegmentList& to);

  /// Bytes that open() and expect() queue.
  static constexpr std::size_t kHeaderBytes = 24;

  /// Bytes of this operation so far, headers included: sent, queued to be received, and received.
  [[nodiscard]] std::uint64_t sent(std::size_t member) const { return peers_[member].out.moved; }
  [[nodiscard]] std::uint64_t queued_in(std::size_t member) const {
    return peers_[member].in.queued;
  }
  [[nodiscard]] std::uint64_t received(std::size_t member) const { return peers_[member].in.moved; }

  /// Transfers bytes until done(). Throws Error(kAborted) if the job was aborted or a peer is lost.
  template <typename Done>
  void move_until(Done&& done) {
    while (!done()) {
      if (!move()) wait();
    }
  }
  /// Transfers everything that is queued.
  void move_all();
  /// Whether all memory queued for receiving is filled.
  [[nodiscard]] bool all_received() const;

  /// Says that in this operation all wait for `member` first, whichever member seems to be late.
  void blame(std::size_t member) { blamed_ = static_cast<int>(member); }

  void time_waits(bool timed);
  [[nodiscard]] Nanos waited() const { return waited_; }
  /// Makes this member store the time in `seen` regularly while it waits. `seen` must outlive this
  /// object.
  void show_waiting(std::atomic<Nanos>& seen) { seen_ = &seen; }
  void report_absence(Nanos limit, AbsenceReport report);

 private:
  struct Header {
    std::uint32_t magic = 0;
    std::uint16_t communicator = 0;
    std::uint16_t kind = 0;
    std::uint64_t serial = 0;  ///< of the communicator's operations
    std::uint64_t bytes = 0;   ///< that follow
  };
  static_assert(sizeof(Header) == kHeaderBytes);
  /// Memory queued in one direction, and the progress of its transfer.
  struct Queue {
    std::vector<iovec> pieces;
    std::size_t next = 0;  ///< first piece that is not complete
    std::uint64_t queued = 0;
    std::uint64_t moved = 0;
    bool ready = true;  ///< the socket may accept or deliver more

    [[nodiscard]] bool empty() const { return next == pieces.size(); }
    void add(void* data, std::size_t bytes);
    void advance(std::size_t bytes);
    void clear();
  };
  struct Peer {
    int socket = -1;
    Queue out;
    Queue in;
    Header sent_header;
    Header header;  ///< of the other side
  };

  bool move();
  bool move_out(std::size_t member);
  bool move_in(std::size_t member);
  void wait();
  void show_that_it_waits();
  void sleep();
  void look_for_absent(Nanos began);
  [[nodiscard]] std::vector<std::size_t> absent() const;
  [[noreturn]] void disagree(std::size_t member, const char* what) const;

  std::shared_ptr<Mesh> mesh_;
  std::vector<int> ranks_;
  std::size_t self_;
  std::uint16_t number_;
  Patience patience_;
  std::vector<Peer> peers_;           // by member; the own one is not used
  std::vector<pollfd> entries_;       // of sleep(), kept for their memory
  std::vector<std::size_t> waiting_;  // members, in the order of entries_ from the second on
  Header current_;
  bool in_operation_ = false;
  int blamed_ = -1;
  bool timed_ = false;
  Nanos waited_ = 0;
  std::atomic<Nanos>* seen_ = nullptr;
  Nanos absence_limit_ = kForever;
  Nanos reported_ = 0;
  AbsenceReport report_;
};

}  // namespace hvdtune
