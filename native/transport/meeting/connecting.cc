#include "transport/meeting/connecting.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "transport/meeting/rendezvous.h"
#include "transport/sockets/handshake.h"
#include "transport/sockets/tcp_listener.h"
#include "transport/sockets/tcp_socket.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

using wire::Directory;
using wire::Introduction;
using wire::kProtocol;
using wire::Lane;
using wire::Place;

// ---- reaching one rank --------------------------------------------------------------------------

// Pause between two attempts to reach a rank, at first and at most.
constexpr Nanos kFirstPause = 10 * kMillisecond;
constexpr Nanos kLongestPause = 500 * kMillisecond;
constexpr int kMostRefusals = 3;

void pause(Nanos time) {
  const timespec span{static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
  nanosleep(&span, nullptr);
}

/// One attempt.
Attempt reach(const std::vector<TcpAddress>& addresses, const RendezvousOptions& options,
              const Introduction& introduction, bool known, Nanos deadline) {
  Attempt attempt;
  const std::string message = introduction.encode();
  auto untried = static_cast<Nanos>(addresses.size());
  const auto introduce = [&](const Fd& socket, std::string& cause) {
    options.on_wait();
    // Another service may accept and then stay silent: this leaves time for the other addresses,
    // if there are any.
    const Nanos now = monotonic_now();
    const Nanos most = known && addresses.size() == 1 ? kForever : options.introduction;
    const Nanos share = std::max<Nanos>(0, deadline - now) / std::max<Nanos>(1, untried--);
    const Nanos until = now + std::min(share, most);
    if (TcpAddress::local(socket.get()).text() == TcpAddress::peer(socket.get()).text()) {
      // The kernel gave this side the very port that it connects to, where nobody listens yet.
      cause = "nobody listens there";
      return false;
    }
    configure_lane(socket, introduction.lane, options.vanish);
    const auto& wait = options.on_wait;
    const auto verdict = handshake::connect_side(socket, options.secret, until, cause, wait);
    attempt.refused |= verdict == handshake::Verdict::kRefused;
    attempt.closed |= verdict == handshake::Verdict::kClosed;
    attempt.silent |= verdict == handshake::Verdict::kSilent;
    if (verdict != handshake::Verdict::kTrusted) return false;
    // It is a rank of the job. Once introduced, the connection may be the one that it keeps: giving
    // it up for another one would leave that rank with a closed one.
    const Nanos last = known ? deadline : until;
    tcp::Outcome outcome = tcp::send_message(socket, message, last, wait);
    std::string answer;
    if (outcome == tcp::Outcome::kDone && known) {
      outcome = tcp::receive_message(socket, answer, last, wait);
    }
    if (outcome == tcp::Outcome::kDone && (!known || answer == kWelcome)) return true;
    attempt.closed |= outcome == tcp::Outcome::kClosed;
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
    // Long enough for a slow network; afterwards the name is resolved again.
    const Nanos until =
        known ? deadline : std::min(deadline, monotonic_now() + options.introduction);
    Attempt attempt = reach(addresses, options, introduction, known, until);
    refusals += attempt.refused ? 1 : 0;
    closings += attempt.closed ? 1 : 0;
    // If it hangs up, it may not be rank 0, but an earlier user of the port.
    const bool hopeless = known && (closings == kMostRefusals ||
                                    !(attempt.refused || attempt.closed || attempt.silent));
    if (attempt.socket.valid() || refusals == kMostRefusals || hopeless ||
        monotonic_now() >= deadline) {
      return attempt;
    }
    options.on_wait();
    pause(std::min(between, std::max<Nanos>(0, deadline - monotonic_now())));
    between = std::min(2 * between, kLongestPause);
  }
}

// ---- all ranks with all others ------------------------------------------------------------------

namespace {

// How long a rank waits for a connection before it checks the other ranks.
constexpr Nanos kComerSlice = 200 * kMillisecond;
// A rank that misses a connection waits least; rank 0 waits this much longer for the last rank, and
// the others wait this much longer than rank 0. So the rank that knows most reports first.
constexpr Nanos kWordTime = 5 * kSecond;
// A rank sends this to rank 0 when it is connected with all others; rank 0 sends it to all when all
// are.
constexpr const char* kConnected = "connected";

std::vector<TcpAddress> addresses_of(const std::vector<Place>& places) {
  std::vector<TcpAddress> addresses;
  for (const Place& place : places) {
    addresses.push_back(TcpAddress::of_digits(place.host, place.port));
  }
  return addresses;
}

/// The connections between any two ranks.
class Connecting {
 public:
  Connecting(const RendezvousOptions& options, Mesh& mesh, const Directory& directory,
             TcpListener* listener)
      : options_(options),
        mesh_(mesh),
        directory_(directory),
        listener_(listener),
        deadline_(monotonic_now() + options.timeout) {
    // If a rank has failed, others may wait for its answer; the notices say why.
    options_.on_wait = [this, &options] {
      options.on_wait();
      mesh_.look();
    };
  }
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

  /// A rank connects to all lower ranks before it waits for higher ones, so no cycle of waits is
  /// possible.
  void run(const TcpAddress& rank0) {
    for (int rank = 0; rank < options_.rank; ++rank) connect_to(rank, rank0);
    const int above = options_.size - 1 - options_.rank;
    int missing = above * (options_.rank == 0 ? 1 : 2);
    while (missing > 0) {
      options_.on_wait();
      auto comer = listener_->accept(std::min(deadline_, monotonic_now() + kComerSlice));
      if (comer && welcome(std::move(*comer))) --missing;
      if (missing > 0 && monotonic_now() >= deadline_) report_missing();
    }
    await_others();
  }

 private:
  /// No rank continues before all are connected: it might end early, which slower ranks could not
  /// tell from a failure.
  void await_others() {
    if (options_.rank > 0) {
      say_connected(0);
      return hear_connected(0, deadline_ + 2 * kWordTime);
    }
    for (int rank = 1; rank < options_.size; ++rank) hear_connected(rank, deadline_ + kWordTime);
    for (int rank = 1; rank < options_.size; ++rank) say_connected(rank);
  }

  void say_connected(int rank) {
    const Nanos last = monotonic_now() + kWordTime;
    const auto sent = tcp::send_message(mesh_.peer(rank).data, kConnected, last, options_.on_wait);
    if (sent != tcp::Outcome::kDone) report_ended(rank);
  }

  void hear_connected(int rank, Nanos last) {
    std::string word;
    const auto heard = tcp::receive_message(mesh_.peer(rank).data, word, last, options_.on_wait);
    if (heard == tcp::Outcome::kDone && word == kConnected) return;
    if (heard != tcp::Outcome::kTimeout) report_ended(rank);
    throw Error(ErrorKind::kTimeout,
                name(rank) + " did not report in time that it is connected to all other ranks");
  }

  void connect_to(int rank, const TcpAddress& rank0) {
    std::vector<TcpAddress> addresses{rank0};
    if (rank > 0) {
      addresses = addresses_of(directory_.entries[static_cast<std::size_t>(rank)].places);
    }
    Introduction introduction;
    introduction.version = options_.version;
    introduction.meeting = directory_.meeting;
    introduction.from = options_.rank;
    introduction.to = rank;
    for (const Lane lane : {Lane::kNotices, Lane::kData}) {
      if (has(rank, lane)) continue;
      introduction.lane = lane;
      Attempt attempt = reach_patiently(addresses, options_, introduction, true, deadline_);
      if (!attempt.socket.valid()) {
        mesh_.hear_reason(rank);
        throw Error(ErrorKind::kAborted,
                    name(options_.rank) + " cannot reach " + name(rank) + " (" + attempt.why +
                        "); if these are the wrong interfaces, name the right ones");
      }
      // The address that works; others may be slow to fail.
      addresses = {TcpAddress::peer(attempt.socket.get())};
      keep(rank, lane, std::move(attempt.socket));
    }
  }

  /// Whether this rank was waiting for this connection.
  bool welcome(TcpListener::Comer comer) {
    Introduction introduction;
    try {
      introduction = Introduction::decode(comer.message);
    } catch (const wire::DecodeError&) {
      return false;
    }
    const int from = introduction.from;
    if (introduction.protocol != kProtocol || introduction.meeting != directory_.meeting ||
        introduction.to != options_.rank || from <= options_.rank || from >= options_.size ||
        has(from, introduction.lane)) {
      return false;
    }
    configure_lane(comer.socket, introduction.lane, options_.vanish);
    const auto sent = tcp::send_message(comer.socket, kWelcome, deadline_, options_.on_wait);
    if (sent != tcp::Outcome::kDone) return false;
    keep(from, introduction.lane, std::move(comer.socket));
    return true;
  }

  [[nodiscard]] bool has(int rank, Lane lane) const {
    const Mesh::Peer& peer = mesh_.peer(rank);
    return lane == Lane::kNotices ? peer.notices.valid() : peer.data.valid();
  }

  void keep(int rank, Lane lane, Fd socket) {
    if (lane == Lane::kNotices) {
      mesh_.add_notices(rank, std::move(socket));
    } else {
      mesh_.add_data(rank, std::move(socket));
    }
  }

  [[nodiscard]] std::string name(int rank) const { return mesh_.name(rank); }

  [[noreturn]] void report_ended(int rank) {
    mesh_.hear_reason(rank);
    throw Error(ErrorKind::kAborted, name(rank) + " ended before all ranks were connected");
  }

  [[noreturn]] void report_missing() const {
    int rank = options_.rank + 1;
    while (has(rank, Lane::kNotices) && has(rank, Lane::kData)) ++rank;
    throw Error(ErrorKind::kTimeout,
                name(rank) + " did not connect to " + name(options_.rank) + " in time");
  }

  RendezvousOptions options_;
  Mesh& mesh_;
  const Directory& directory_;
  TcpListener* listener_;
  Nanos deadline_;
};

std::vector<Mesh::Peer> peers_of(const Directory& directory) {
  std::vector<Mesh::Peer> peers;
  for (const Directory::Entry& entry : directory.entries) {
    peers.push_back({entry.hostname, entry.pid, {}, {}});
  }
  return peers;
}

}  // namespace

std::unique_ptr<Mesh> connect_all(const RendezvousOptions& options, const Directory& directory,
                                  std::vector<Fd> notices, TcpListener* listener) {
  auto mesh = std::make_unique<Mesh>(options.rank, peers_of(directory), options.vanish);
  mesh->set_names(options.names);
  TcpAddress rank0;
  for (std::size_t rank = 0; rank < notices.size(); ++rank) {
    if (!notices[rank].valid()) continue;
    if (rank == 0) rank0 = TcpAddress::peer(notices[rank].get());
    mesh->add_notices(static_cast<int>(rank), std::move(notices[rank]));
  }
  try {
    Connecting(options, *mesh, directory, listener).run(rank0);
  } catch (const std::exception& error) {
    mesh->abort(error.what());
    throw;
  }
  return mesh;
}

}  // namespace hvdtune
