#include "transport/sockets/tcp_listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/sockets/handshake.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {
namespace {

/// The socket's buffer is empty, so the bytes are sent at once; if not, the other side is not worth
/// waiting for.
bool send_whole(const Fd& socket, std::string_view bytes) {
  return send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

TcpListener::TcpListener(const std::vector<TcpAddress>& addresses, std::string secret,
                         std::size_t most_pending)
    : secret_(std::move(secret)), most_pending_(most_pending) {
  HVD_CHECK(!secret_.empty());
  std::string problems;
  for (const TcpAddress& address : addresses) {
    try {
      listeners_.push_back(tcp::listen(address));
    } catch (const Error& error) {
      problems += (problems.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (problems.empty()) return;
  if (listeners_.empty()) throw Error(ErrorKind::kInvalidArgument, problems);
  HVD_LOG(kWarning) << problems << "; this process uses its other addresses";
}

std::vector<TcpAddress> TcpListener::addresses() const {
  std::vector<TcpAddress> all;
  for (const Fd& listener : listeners_) all.push_back(TcpAddress::local(listener.get()));
  return all;
}

std::optional<TcpListener::Comer> TcpListener::accept(Nanos deadline) {
  while (true) {
    std::vector<pollfd> entries;
    Nanos until = deadline;
    for (const Fd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    for (const Pending& pending : pending_) {
      entries.push_back({pending.socket.get(), POLLIN, 0});
      until = std::min(until, pending.deadline);
    }
    const int ready = poll(entries.data(), entries.size(), tcp::milliseconds_until(until));
    if (ready > 0) {
      std::vector<short> events;
      for (const pollfd& entry : entries) events.push_back(entry.revents);
      if (auto comer = look_at(events)) return comer;
    }
    const Nanos now = monotonic_now();
    expire(now);
    if (now >= deadline) return std::nullopt;
  }
}

/// `events`: what poll has found at the listeners, and then at the pending connections.
std::optional<TcpListener::Comer> TcpListener::look_at(const std::vector<short>& events) {
  std::optional<Comer> comer;
  auto next = pending_.begin();
  for (std::size_t i = listeners_.size(); i < events.size() && !comer; ++i) {
    const auto pending = next++;
    if (events[i] == 0) continue;
    std::string why;
    switch (advance(*pending, why)) {
      case Progress::kWaits:
        break;
      case Progress::kReady:
        comer = {std::move(pending->socket), pending->from, std::move(pending->received)};
        [[fallthrough]];
      case Progress::kGone:
        pending_.erase(pending);
        break;
      case Progress::kStranger:
        turn_away(pending, why);
        break;
    }
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (events[i] != 0) accept_from(listeners_[i]);
  }
  return comer;
}

void TcpListener::accept_from(const Fd& listener) {
  // Accept no more than fit: even if connections arrive faster than they are checked, this process
  // keeps its deadline and serves earlier ones.
  for (std::size_t tries = 0; tries < most_pending_; ++tries) {
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    Fd socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &length,
                      SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      if (pending_.size() >= most_pending_) {
        turn_away(pending_.begin(), "was the oldest of too many that were connecting at once");
      }
      pending_.push_back({std::move(socket),
                          TcpAddress(reinterpret_cast<const sockaddr*>(&from), length),
                          monotonic_now() + kHandshakeTime,
                          {},
                          handshake::kGreetingBytes,
                          Stage::kGreeting,
                          {}});
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EMFILE && errno != ENFILE) return;  // no other connection, or it has closed again
    if (pending_.empty()) {
      throw Error(ErrorKind::kAborted,
                  "this process has too many files open to accept a connection (ulimit -n)");
    }
    turn_away(pending_.begin(), "was the oldest of too many that were connecting at once");
  }
}

void TcpListener::turn_away(std::list<Pending>::iterator pending, const std::string& why) {
  if (strangers_++ == 0) {
    HVD_LOG(kWarning) << "turned away a connection from " << pending->from.text() << ", which "
                      << why << "; further ones are counted, but not logged";
  }
  pending_.erase(pending);
}

void TcpListener::expire(Nanos now) {
  for (auto next = pending_.begin(); next != pending_.end();) {
    const auto pending = next++;
    if (pending->deadline > now) continue;
    if (pending->stage == Stage::kGreeting || pending->stage == Stage::kProof) {
      turn_away(pending, "did not prove that it belongs to the job");
    } else {
      pending_.erase(pending);
    }
  }
}

/// Reads the available bytes, but none after the message: those belong to the receiver of the
/// connection.
TcpListener::Progress TcpListener::advance(Pending& pending, std::string& why) {
  while (true) {
    const std::size_t have = pending.received.size();
    if (have < pending.wanted) {
      // Allocate only for received bytes: a length alone allocates nothing.
      char bytes[4096];
      const std::size_t most = std::min(pending.wanted - have, sizeof(bytes));
      const ssize_t got = recv(pending.socket.get(), bytes, most, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return Progress::kWaits;
      if (got <= 0) {
        why = "ended before it had proved that it belongs to the job";
        return pending.stage < Stage::kLength ? Progress::kStranger : Progress::kGone;
      }
      pending.received.append(bytes, static_cast<std::size_t>(got));
      if (pending.stage == Stage::kGreeting) {
        const auto checked = std::min(pending.received.size(), handshake::kMagic.size());
        if (pending.received.compare(0, checked, handshake::kMagic.substr(0, checked)) != 0) {
          why = "does not speak hvdtune's protocol";
          return Progress::kStranger;
        }
      }
      continue;
    }
    if (const Progress progress = end_stage(pending, why); progress != Progress::kWaits) {
      return progress;
    }
  }
}

/// kWaits: there is another stage.
TcpListener::Progress TcpListener::end_stage(Pending& pending, std::string& why) {
  switch (pending.stage) {
    case Stage::kGreeting:
      return greet(pending, why);
    case Stage::kProof:
      return judge(pending, why);
    case Stage::kLength: {
      std::uint32_t length = 0;
      std::memcpy(&length, pending.received.data(), sizeof(length));
      if (length > tcp::kMaxMessage) return Progress::kGone;
      pending.received.clear();
      pending.wanted = length;
      pending.stage = Stage::kMessage;
      return Progress::kWaits;
    }
    case Stage::kMessage:
      break;
  }
  return Progress::kReady;
}

TcpListener::Progress TcpListener::greet(Pending& pending, std::string& why) {
  const std::string mine = handshake::make_greeting();
  if (!send_whole(pending.socket, mine)) {
    why = "ended before it had proved that it belongs to the job";
    return Progress::kStranger;
  }
  pending.greetings = pending.received + mine;
  pending.received.clear();
  pending.wanted = handshake::kProofBytes;
  pending.stage = Stage::kProof;
  return Progress::kWaits;
}

TcpListener::Progress TcpListener::judge(Pending& pending, std::string& why) {
  using handshake::Side;
  const std::string_view theirs(pending.greetings.data(), handshake::kGreetingBytes);
  const std::string_view mine(pending.greetings.data() + theirs.size(), handshake::kGreetingBytes);
  const Digest expected = handshake::proof(Side::kConnects, secret_, theirs, mine);
  if (!equal_in_constant_time(pending.received, view_of(expected))) {
    why = "does not know the job's secret";
    return Progress::kStranger;
  }
  const Digest own = handshake::proof(Side::kAccepts, secret_, theirs, mine);
  if (!send_whole(pending.socket, view_of(own))) return Progress::kGone;
  pending.received.clear();
  pending.wanted = tcp::kLengthBytes;
  pending.stage = Stage::kLength;
  return Progress::kWaits;
}

}  // namespace hvdtune
