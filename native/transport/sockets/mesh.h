#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

namespace hvdtune {

/// The most ranks that a mesh can have.
inline constexpr int kMaxMeshRanks = 1024;

/// TCP connections between all ranks of a job: to each peer one for data, and one for notices about
/// the job as a whole. Made by form_mesh() (transport/meeting/rendezvous.h).
///
/// Notices have their own connection for two reasons. Data may be stuck on the data connection; and
/// only on a nearly idle connection can TCP keepalive show whether the other host is still there:
/// its kernel answers even for a stopped process. On a connection with data under way, a process
/// that does not read looks like a host that is gone.
///
/// The mesh knows why a connection ended: a rank that aborts first tells all others, one that shuts
/// down says goodbye, and one that does neither has died. The first cause counts, and every rank
/// gets the same sentence.
///
/// Belongs to one thread at a time; only abort(), aborted() and abort_status() may be called by any
/// thread, at any time.
class Mesh {
 public:
  struct Peer {
    std::string hostname;
    int pid = 0;
    Fd notices;  ///< of the own rank: invalid
    Fd data;     ///< non-blocking; only the communicators use it
  };

  /// `peers`: by rank, connected or not (yet). `vanish`: what the sockets were configured with.
  Mesh(int rank, std::vector<Peer> peers, Nanos vanish);
  /// Says goodbye to the peers that are still connected, unless the job was aborted.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] const Peer& peer(int rank) const;
  /// "rank 2 (pid 77 on a)".
  [[nodiscard]] std::string name(int rank) const;
  /// Sets the ranks that messages show for this mesh's ranks, if they are not those of the job.
  void set_names(std::vector<int> ranks) { names_ = std::move(ranks); }

  /// `cause` is called regularly during waits for these connections. It returns whether the job has
  /// ended for a reason that no connection reports; not kOk = it has.
  void set_outside_cause(std::function<Status()> cause) { outside_cause_ = std::move(cause); }
  [[nodiscard]] bool has_outside_cause() const { return outside_cause_ != nullptr; }
  /// Throws Error(kAborted) if the job has ended for an outside cause.
  void ask_outside();
  /// Like look(), but waits for the rank's goodbye, until `deadline` at most.
  bool await_goodbye(int rank, Nanos deadline);

  /// Tells the peers that neither side needs the other any more. The destructor also does so. Any
  /// thread.
  void say_goodbye();

  /// For a forked child: closes the connections without telling the others.
  void abandon();

  void add_notices(int rank, Fd socket);
  void add_data(int rank, Fd socket);

  /// Ends the job for all ranks: the first caller's text is kept, and all ranks get it. Does not
  /// block. A rank that waits in poll on attention() wakes.
  void abort(const std::string& text) noexcept;
  [[nodiscard]] bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// The cause, or kOk.
  [[nodiscard]] Status abort_status() const;

  /// Readable when look() has something to look at.
  [[nodiscard]] int attention() const { return attention_.get(); }
  /// Reads the peers' notices. Throws Error(kAborted) if the job was aborted or a peer has died.
  void look();

  /// Whether `rank` has said goodbye.
  [[nodiscard]] bool has_left(int rank) const {
    return states_[static_cast<std::size_t>(rank)] == State::kLeft;
  }

  /// A connection to `rank` failed: waits a moment for the reason, which arrives on another
  /// connection. Throws Error(kAborted) if a peer sends one.
  void hear_reason(int rank);

  /// The notice that abort() sends to a peer, for a rank that has no mesh yet.
  static std::string abort_notice(std::string_view text);

  /// The connection to `rank` failed in the middle of an operation: with `error` (an errno), or
  /// closed (0). Finds out why, in bounded time, and throws Error(kAborted).
  [[noreturn]] void lost(int rank, int error);

 private:
  enum class State : std::uint8_t { kPresent, kLeft };
  enum class Notice : char { kAbort = 1, kGoodbye = 2 };
  static std::string framed(Notice notice, std::string_view text);

  void watch(int fd, std::uint32_t key);
  void read_notices(int rank);
  /// False when a notice is malformed.
  bool take_notices(int rank, std::string& received);
  void ended(int rank, int error);
  void tell(const Peer& peer, Notice notice, std::string_view text) const;
  void throw_if_aborted() const;
  [[nodiscard]] int shown(int rank) const;

  int rank_;
  std::vector<int> names_;  // empty: the mesh's own ranks
  std::function<Status()> outside_cause_;
  Nanos vanish_;
  std::vector<Peer> peers_;
  std::vector<State> states_;
  std::vector<std::string> received_;  // by rank: the beginning of a notice
  Fd attention_;                       // epoll over all notice connections and wakeup_
  Fd wakeup_;
  mutable std::mutex abort_mutex_;  // guards what follows; abort is sent before goodbye
  bool has_said_goodbye_ = false;
  std::string abort_text_;
  std::atomic<bool> aborted_{false};
};

}  // namespace hvdtune
