#include "transport/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "transport/handshake.h"
#include "transport/roll_call.h"
#include "wire/codec.h"
#include "wire/meeting.h"

namespace hvdtune {
namespace {

using wire::Directory;
using wire::Introduction;
using wire::kProtocol;
using wire::Lane;
using wire::Place;

constexpr Nanos kWaitSlice = 200 * kMillisecond;
// Between two attempts to reach rank 0, at first and at most.
constexpr Nanos kFirstPause = 10 * kMillisecond;
constexpr Nanos kLongestPause = 500 * kMillisecond;
constexpr int kMostRefusals = 3;
// For one connection to show what it is; where there are several addresses, they share it.
constexpr Nanos kIntroductionTime = 10 * kSecond;
// For a rank to take what it is told.
constexpr Nanos kTellingTime = 3 * kSecond;
// What the others wait longer than rank 0 does: it waits for the slowest, and then tells.
constexpr Nanos kVerdictTime = 5 * kSecond;
constexpr std::size_t kMeetingBytes = 16;
constexpr const char* kWelcome = "welcome";
constexpr const char* kEndedEarly = "ended before all processes of the job had come";

std::vector<TcpAddress> addresses_of(const std::vector<Place>& places) {
  std::vector<TcpAddress> addresses;
  for (const Place& place : places) {
    addresses.push_back(TcpAddress::of_digits(place.host, place.port));
  }
  return addresses;
}

std::vector<Place> places_of(const std::vector<TcpAddress>& addresses) {
  std::vector<Place> places;
  for (const TcpAddress& address : addresses) places.push_back({address.host(), address.port()});
  return places;
}

void pause(Nanos time) {
  const timespec span{static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
  nanosleep(&span, nullptr);
}

std::string version_text(const std::string& version, std::uint32_t protocol) {
  return "hvdtune " + version + " (protocol " + std::to_string(protocol) + ")";
}

void configure(const Fd& socket, Lane lane, Nanos vanish) {
  tcp::send_at_once(socket);
  if (lane == Lane::kNotices) tcp::notice_vanished_host(socket, vanish);
}

// ---- one connection -----------------------------------------------------------------------------

/// What came of an attempt to reach another rank.
struct Attempt {
  Fd socket;  ///< invalid: `why` tells
  std::string why;
  bool refused = false;  ///< somebody there does not trust this process, or the other way round
  bool closed = false;   ///< somebody there hung up, which may have been because of others
};

/// Connects, proves itself and introduces itself. `answered`: wait for the welcome that says that
/// this is who was meant: several hosts can have the same address on different networks, and a host
/// can reach itself by one that another one has, too.
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
    configure(socket, introduction.lane, options.vanish);
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

/// Tries again: rank 0 may not be there yet, unless it is `known` to be, or another rank; and
/// strangers who come in crowds may have pushed this process out of the door.
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

// ---- rank 0 -------------------------------------------------------------------------------------

/// Who takes part, as rank 0 knows it.
class Host {
 public:
  explicit Host(const RendezvousOptions& options)
      : options_(options),
        deadline_(monotonic_now() + options.timeout),
        listener_(options.listener || options.size == 1 ? options.listener
                                                        : listen_for_ranks(options)),
        sockets_(static_cast<std::size_t>(options.size)) {
    directory_.entries.resize(sockets_.size());
    directory_.entries[0] = {options.hostname, getpid(), {}};
    directory_.meeting.resize(kMeetingBytes);
    fill_with_random_bytes(directory_.meeting.data(), kMeetingBytes);
  }

  /// The directory, which all others have got as well.
  Directory run() {
    try {
      gather();
    } catch (const std::exception& error) {
      if (directory_.error.empty()) fail(ErrorKind::kAborted, early_end_text(0, error.what()));
      hang_up();
      throw;
    }
    if (!directory_.error.empty()) {
      hang_up();
      throw Error(kind_, directory_.error);
    }
    const std::string answer = directory_.encode();
    for (const Fd& socket : sockets_) tell(socket, answer);
    return std::move(directory_);
  }

  std::vector<Fd>& sockets() { return sockets_; }
  const std::shared_ptr<TcpListener>& listener() { return listener_; }

 private:
  void gather() {
    int missing = options_.size - 1;
    while (missing > 0) {
      auto comer = next();
      if (comer) {
        if (admit(std::move(*comer))) --missing;
      } else if (directory_.error.empty()) {
        fail(ErrorKind::kTimeout, absent());  // who is at the door, or comes soon, learns it, too
      } else {
        return;
      }
    }
    if (directory_.error.empty()) learn_places();
  }

  std::optional<TcpListener::Comer> next() {
    while (true) {
      options_.on_wait();
      auto comer = listener_->accept(std::min(deadline_, monotonic_now() + kWaitSlice));
      if (comer || monotonic_now() >= deadline_) return comer;
    }
  }

  /// Tells those who are there, and soon those who still come.
  void fail(ErrorKind kind, const std::string& text) {
    kind_ = kind;
    directory_.error = text;
    deadline_ = monotonic_now() + options_.grace;
    for (Fd& socket : sockets_) {
      if (socket.valid()) refuse(std::move(socket));
    }
  }

  void refuse(Fd socket) {
    tell(socket, directory_.encode());
    shutdown(socket.get(), SHUT_WR);
    refused_.push_back(std::move(socket));
  }

  /// What a rank has sent and nobody has read (where it listens) would make the kernel drop the
  /// answer: so they are read until they have got it and hang up.
  void hang_up() {
    const Nanos until = monotonic_now() + kTellingTime;
    char unread[4096];
    for (const Fd& socket : refused_) {
      std::size_t most = tcp::kMaxMessage / sizeof(unread);
      while (most-- > 0 && tcp::wait_for(socket.get(), POLLIN, until) &&
             recv(socket.get(), unread, sizeof(unread), 0) > 0) {
      }
    }
    refused_.clear();
  }

  /// True when a rank of this job came, welcome or not.
  bool admit(TcpListener::Comer comer) {
    Introduction introduction;
    try {
      introduction = Introduction::decode(comer.message);
    } catch (const wire::DecodeError&) {
      return false;
    }
    if (introduction.meeting.empty() && directory_.error.empty()) check(introduction, comer.from);
    if (!introduction.meeting.empty()) return false;  // of a meeting that is over
    if (!directory_.error.empty()) {
      refuse(std::move(comer.socket));
      return true;
    }
    const auto rank = static_cast<std::size_t>(introduction.from);
    configure(comer.socket, Lane::kNotices, options_.vanish);
    sockets_[rank] = std::move(comer.socket);
    directory_.entries[rank] = {introduction.hostname, introduction.pid, {}};
    return true;
  }

  void check(const Introduction& comer, const TcpAddress& from) {
    if (comer.protocol != kProtocol || comer.version != options_.version) {
      return fail(ErrorKind::kInvalidArgument,
                  "the ranks run different versions of hvdtune: " +
                      version_text(comer.version, comer.protocol) + " at " + from.host() + ", " +
                      version_text(options_.version, kProtocol) + " on rank 0 at " +
                      options_.hostname + "; install the same version on all hosts");
    }
    const auto rank = static_cast<std::size_t>(comer.from);
    const bool taken = rank < sockets_.size() && sockets_[rank].valid();
    const std::string objection =
        objection_to({comer.from, comer.size, comer.pid, comer.hostname, comer.agreement},
                     {0, options_.size, getpid(), options_.hostname, options_.agreement},
                     taken ? directory_.entries[rank].pid : 0);
    if (!objection.empty()) fail(ErrorKind::kInvalidArgument, objection);
  }

  [[nodiscard]] std::string absent() const {
    std::vector<bool> present{true};
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
      present.push_back(sockets_[rank].valid());
    }
    return absence_text(present, options_.timeout);
  }

  /// They were sent right behind the introductions.
  void learn_places() {
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
      std::string message;
      const auto outcome = tcp::receive_message(
          sockets_[rank], message, std::min(deadline_, monotonic_now() + kIntroductionTime));
      try {
        if (outcome == tcp::Outcome::kDone) {
          directory_.entries[rank].places = wire::decode_places(message);
        }
      } catch (const wire::DecodeError&) {
        message.clear();
      }
      if (outcome == tcp::Outcome::kDone && !message.empty()) continue;
      return fail(ErrorKind::kAborted, early_end_text(rank, ""));
    }
  }

  [[nodiscard]] std::string early_end_text(std::size_t rank, const std::string& why) const {
    const Directory::Entry& entry = directory_.entries[rank];
    return name_of(static_cast<int>(rank), entry.pid, entry.hostname) + " " + kEndedEarly +
           (why.empty() ? "" : ": " + why);
  }

  static void tell(const Fd& socket, const std::string& answer) {
    if (socket.valid()) tcp::send_message(socket, answer, monotonic_now() + kTellingTime);
  }

  const RendezvousOptions& options_;
  Nanos deadline_;
  std::shared_ptr<TcpListener> listener_;
  std::vector<Fd> sockets_;  // by rank
  std::vector<Fd> refused_;
  Directory directory_;
  ErrorKind kind_ = ErrorKind::kInvalidArgument;
};

// ---- the others ---------------------------------------------------------------------------------

/// What a rank has after it was at rank 0.
struct Visit {
  Fd rank0;
  std::shared_ptr<TcpListener> listener;  // null: no rank comes to this one
  Directory directory;
};

Fd reach_rank0(const RendezvousOptions& options, Nanos deadline) {
  Introduction introduction;
  introduction.version = options.version;
  introduction.from = options.rank;
  introduction.size = options.size;
  introduction.pid = getpid();
  introduction.hostname = options.hostname;
  introduction.agreement = options.agreement;
  const std::vector<TcpAddress> addresses = resolve(options.host, options.port);
  const std::string where = options.host + ":" + std::to_string(options.port);
  Attempt attempt = reach_patiently(addresses, options, introduction, false, deadline);
  if (attempt.socket.valid()) return std::move(attempt.socket);
  const std::string self = "rank " + std::to_string(options.rank);
  if (attempt.refused) {
    throw Error(ErrorKind::kInvalidArgument,
                self + " cannot join rank 0 at " + where + ": " + attempt.why);
  }
  throw Error(ErrorKind::kTimeout, rank0_absence_text(options.timeout) + ": " + self + " on " +
                                       options.hostname + " cannot reach it at " + where + " (" +
                                       attempt.why + ")");
}

std::shared_ptr<TcpListener> listen_for_higher_ranks(const RendezvousOptions& options,
                                                     const Fd& rank0) {
  if (options.rank + 1 >= options.size) return nullptr;
  const std::vector<TcpAddress> addresses =
      options.interfaces.empty() ? std::vector{TcpAddress::local(rank0.get()).with_port(0)}
                                 : interface_addresses(options.interfaces);
  return std::make_shared<TcpListener>(addresses, options.secret);
}

/// Says where this rank listens, and gets rank 0's answer. What goes wrong here meanwhile is told
/// to rank 0, and by it to all.
tcp::Outcome attend(const RendezvousOptions& options, Visit& visit, std::string& message,
                    Nanos last) {
  const auto say_places = [&](const std::vector<Place>& places) {
    return tcp::send_message(visit.rank0, wire::encode_places(places), last);
  };
  bool said = false;
  try {
    visit.listener = listen_for_higher_ranks(options, visit.rank0);
    say_places(visit.listener ? places_of(visit.listener->addresses()) : std::vector<Place>{});
    said = true;
    // Even if that failed: rank 0 may have said why it has ended.
    return tcp::receive_message(visit.rank0, message, last, options.on_wait);
  } catch (const std::exception& error) {
    if (!said) say_places({});
    const std::string notice = Mesh::abort_notice(
        name_of(options.rank, getpid(), options.hostname) + " has failed: " + error.what());
    tcp::send_all(visit.rank0, notice, last);
    throw;
  }
}

ErrorKind kind_of_verdict(const std::string& error) {
  if (is_absence_text(error)) return ErrorKind::kTimeout;
  return error.find(kEndedEarly) != std::string::npos ? ErrorKind::kAborted
                                                      : ErrorKind::kInvalidArgument;
}

Visit visit_rank0(const RendezvousOptions& options) {
  Visit visit;
  visit.rank0 = reach_rank0(options, monotonic_now() + options.timeout);
  // Rank 0, which may have come much later than this rank, waits from its own beginning on.
  const Nanos last = monotonic_now() + options.timeout + kVerdictTime;
  std::string message;
  const tcp::Outcome outcome = attend(options, visit, message, last);
  if (outcome != tcp::Outcome::kDone) {
    const bool late = outcome == tcp::Outcome::kTimeout;
    throw Error(late ? ErrorKind::kTimeout : ErrorKind::kAborted,
                late ? "rank 0 did not answer in time" : std::string("rank 0 ") + kEndedEarly);
  }
  try {
    visit.directory = Directory::decode(message);
  } catch (const wire::DecodeError&) {
    throw Error(ErrorKind::kInvalidArgument, "rank 0 runs another version of hvdtune");
  }
  const std::string& error = visit.directory.error;
  if (!error.empty()) {
    throw Error(kind_of_verdict(error), error);
  }
  if (visit.directory.entries.size() != static_cast<std::size_t>(options.size)) {
    throw Error(ErrorKind::kAborted, "rank 0 sent the directory of another job");
  }
  return visit;
}

// ---- everybody ----------------------------------------------------------------------------------

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
    // A rank that has failed may leave others waiting for an answer; the notices say why.
    options_.on_wait = [this, &options] {
      options.on_wait();
      look_at_others();
    };
  }
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

  /// Those below are waited for only by higher ranks: nobody waits in a circle.
  void run(const TcpAddress& rank0) {
    for (int rank = 0; rank < options_.rank; ++rank) connect_to(rank, rank0);
    const int above = options_.size - 1 - options_.rank;
    int missing = above * (options_.rank == 0 ? 1 : 2);
    while (missing > 0) {
      options_.on_wait();
      auto comer = listener_->accept(std::min(deadline_, monotonic_now() + kWaitSlice));
      if (comer && welcome(std::move(*comer))) --missing;
      if (missing > 0 && monotonic_now() >= deadline_) report_missing();
    }
  }

 private:
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
        look_at_others();
        throw Error(ErrorKind::kAborted,
                    name(options_.rank) + " cannot reach " + name(rank) + " (" + attempt.why +
                        "); if these are the wrong interfaces, name the right ones");
      }
      // The way that works; others may be slow to fail.
      addresses = {TcpAddress::peer(attempt.socket.get())};
      keep(rank, lane, std::move(attempt.socket));
    }
  }

  /// Some may be connected with everybody already, and have gone on to an early end.
  void look_at_others() {
    mesh_.look();
    for (int rank = 0; rank < options_.size; ++rank) {
      if (!mesh_.has_left(rank)) continue;
      throw Error(ErrorKind::kAborted,
                  name(rank) + " has shut down before all ranks were connected");
    }
  }

  /// Whether it was a connection that is waited for.
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
    configure(comer.socket, introduction.lane, options_.vanish);
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

std::unique_ptr<Mesh> connect_all(const RendezvousOptions& options, const Directory& directory,
                                  std::vector<Fd> notices, TcpListener* listener) {
  auto mesh = std::make_unique<Mesh>(options.rank, peers_of(directory), options.vanish);
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

}  // namespace

std::shared_ptr<TcpListener> listen_for_ranks(const RendezvousOptions& options) {
  std::vector<TcpAddress> addresses;
  if (options.interfaces.empty()) {
    addresses = resolve(options.host, options.port);
  } else {
    for (const TcpAddress& address : interface_addresses(options.interfaces)) {
      addresses.push_back(address.with_port(options.port));
    }
  }
  return std::make_shared<TcpListener>(addresses, options.secret);
}

std::unique_ptr<Mesh> form_mesh(const RendezvousOptions& options) {
  HVD_CHECK(options.rank >= 0 && options.rank < options.size);
  if (options.size > kMaxMeshRanks) {
    throw Error(ErrorKind::kInvalidArgument, "a job of " + std::to_string(options.size) +
                                                 " processes cannot use sockets: at most " +
                                                 std::to_string(kMaxMeshRanks) +
                                                 " can be connected with each other");
  }
  if (options.size > 1 && options.secret.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "ranks on several hosts need a secret in common (HVDTUNE_SECRET)");
  }
  if (options.rank == 0) {
    Host host(options);
    const Directory directory = host.run();
    return connect_all(options, directory, std::move(host.sockets()), host.listener().get());
  }
  Visit visit = visit_rank0(options);
  std::vector<Fd> notices;
  notices.push_back(std::move(visit.rank0));
  return connect_all(options, visit.directory, std::move(notices), visit.listener.get());
}

}  // namespace hvdtune
