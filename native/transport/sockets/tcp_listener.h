#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/sockets/tcp_address.h"

namespace hvdtune {

/// Accepts connections at chosen addresses, from processes that know the job's secret
/// (transport/sockets/handshake.h). Turns all others away: it interprets nothing that they send,
/// they cannot keep the job's processes from connecting, and only the first is logged.
///
/// Belongs to one thread; works only while that thread is in accept().
class TcpListener {
 public:
  /// If an address cannot be listened at, this logs it and uses the others (a host's name may
  /// resolve to an IPv6 address in a container without IPv6). Throws Error(kInvalidArgument) if
  /// none can be listened at. `secret`: not empty. `most_pending`: see kMostPending.
  TcpListener(const std::vector<TcpAddress>& addresses, std::string secret,
              std::size_t most_pending = kMostPending);

  /// The addresses that it listens at, with the ports that the kernel has chosen.
  [[nodiscard]] std::vector<TcpAddress> addresses() const;

  /// A process that knows the secret, and the first message that it has sent.
  struct Comer {
    Fd socket;
    TcpAddress from;
    std::string message;
  };
  /// The next process, or nothing at the deadline. Checks at least once, and stops at the deadline
  /// even if connections arrive faster than it can check them. Throws Error(kAborted) if this
  /// process can open no further files.
  std::optional<Comer> accept(Nanos deadline);

  /// Number of connections turned away.
  [[nodiscard]] std::size_t strangers() const { return strangers_; }

  /// How many connections can be in the middle of the handshake; a further one replaces the oldest.
  /// Callers set more if more ranks may connect at once.
  static constexpr std::size_t kMostPending = 256;
  /// How long a handshake may take.
  static constexpr Nanos kHandshakeTime = 10 * kSecond;

 private:
  enum class Stage { kGreeting, kProof, kLength, kMessage };
  struct Pending {
    Fd socket;
    TcpAddress from;
    Nanos deadline;
    std::string received;  ///< of the current stage
    std::size_t wanted;    ///< bytes of the current stage
    Stage stage = Stage::kGreeting;
    std::string greetings;  ///< theirs and ours, once exchanged
  };
  enum class Progress { kWaits, kReady, kStranger, kGone };

  void accept_from(const Fd& listener);
  void turn_away(std::list<Pending>::iterator pending, const std::string& why);
  Progress advance(Pending& pending, std::string& why);
  Progress end_stage(Pending& pending, std::string& why);
  Progress greet(Pending& pending, std::string& why);
  Progress judge(Pending& pending, std::string& why);
  void expire(Nanos now);
  std::optional<Comer> look_at(const std::vector<short>& events);

  std::string secret_;
  std::size_t most_pending_;
  std::vector<Fd> listeners_;
  std::list<Pending> pending_;  // oldest first
  std::size_t strangers_ = 0;
};

}  // namespace hvdtune
