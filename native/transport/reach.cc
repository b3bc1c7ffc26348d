#include "transport/reach.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "transport/handshake.h"
#include "transport/rendezvous.h"
#include "transport/tcp_socket.h"

namespace hvdtune {
namespace {

using wire::Introduction;
using wire::Lane;

// Between two attempts to reach a rank, at first and at most.
constexpr Nanos kFirstPause = 10 * kMillisecond;
constexpr Nanos kLongestPause = 500 * kMillisecond;
constexpr int kMostRefusals = 3;

void pause(Nanos time) {
  const timespec span{static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
  nanosleep(&span, nullptr);
}

/// One attempt.
Attempt reach(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
              const Introduction& introduction, bool answered, Nanos deadline) {
  Attempt attempt;
  const std::string message = introduction.encode();
  auto untried = static_cast<Nanos>(addresses.size());
  const auto introduce = [&](const Fd& socket, std::string& cause) {
    options.on_wait();
    // Somebody else's service may accept and then say nothing: that leaves time for the others.
    const Nanos share =
        std::max<Nanos>(0, deadline - monotonic_now()) / std::max<Nanos>(1, untried--);
    if (TcpAddress::local(socket.get()).text() == TcpAddress::peer(socket.get()).text()) {
      // The kernel gave this side the very port that it connects to, where nobody listens yet.
      cause = "nobody listens there";
      return false;
    }
    configure_lane(socket, introduction.lane, options.vanish);
    const Nanos until = monotonic_now() + std::min(share, kIntroductionTime);
    const auto& wait = options.on_wait;
    const auto verdict = handshake::connect_side(socket, options.secret, until, cause, wait);
    attempt.refused |= verdict == handshake::Verdict::kRefused;
    attempt.closed |= verdict == handshake::Verdict::kClosed;
    if (verdict != handshake::Verdict::kTrusted) return false;
    tcp::Outcome outcome = tcp::send_message(socket, message, until, wait);
    std::string answer;
    if (outcome == tcp::Outcome::kDone && answered) {
      outcome = tcp::receive_message(socket, answer, until, wait);
    }
    if (outcome == tcp::Outcome::kDone && (!answered || answer == kWelcome)) return true;
    cause = outcome == tcp::Outcome::kTimeout ? "no answer" : "another rank listens there";
    return false;
  };
  attempt.socket = tcp::connect(addresses, deadline, attempt.why, introduce, options.on_wait);
  return attempt;
}

}  // namespace

void configure_lane(const Fd& socket, Lane lane, Nanos vanish) {
  tcp::send_at_once(socket);
  if (lane == Lane::kNotices) tcp::notice_vanished_host(socket, vanish);
}

Attempt reach_patiently(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
                        const Introduction& introduction, bool known, Nanos deadline) {
  Nanos between = kFirstPause;
  int refusals = 0;
  int closings = 0;
  while (true) {
    // Long enough for a slow way; and then what the name stands for is tried afresh.
    const Nanos until = known ? deadline : std::min(deadline, monotonic_now() + kIntroductionTime);
    Attempt attempt = reach(addresses, options, introduction, known, until);
    refusals += attempt.refused ? 1 : 0;
    closings += attempt.closed ? 1 : 0;
    // Rank 0 that hangs up may not be rank 0 yet, but what had the port before.
    const bool hopeless =
        known && (closings == kMostRefusals || !(attempt.refused || attempt.closed));
    if (attempt.socket.valid() || refusals == kMostRefusals || hopeless ||
        monotonic_now() >= deadline) {
      return attempt;
    }
    options.on_wait();
    pause(std::min(between, std::max<Nanos>(0, deadline - monotonic_now())));
    between = std::min(2 * between, kLongestPause);
  }
}

}  // namespace hvdtune
