#include "transport/meeting/rendezvous.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "transport/meeting/connecting.h"
#include "transport/meeting/roll_call.h"
#include "transport/sockets/rank_name.h"
#include "transport/sockets/tcp_socket.h"
#include "wire/codec.h"
#include "wire/meeting.h"

namespace hvdtune {
namespace {

using wire::Directory;
using wire::Introduction;
using wire::kProtocol;
using wire::Lane;
using wire::Place;

// How long a rank may take to receive an answer.
constexpr Nanos kTellingTime = 3 * kSecond;
// The others wait this much longer than rank 0, which waits for the slowest and then sends the
// result.
constexpr Nanos kVerdictTime = 5 * kSecond;
constexpr std::size_t kMeetingBytes = 16;
constexpr const char* kEndedEarly = "ended before all processes of the job had come";

/// All ranks may connect at once, each with two connections.
std::size_t most_pending(int size) {
  return std::max(TcpListener::kMostPending, 2 * static_cast<std::size_t>(size));
}

/// Raises the limit of open files, as far as allowed, to fit a mesh of `size` ranks and connections
/// of strangers. The number of the program's own files is unknown: 256 are reserved for them.
void allow_files(int size) {
  rlimit limit{};
  const rlim_t needed = 4 * static_cast<rlim_t>(size) + 256;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<Place> places_of(const std::vector<TcpAddress>& addresses) {
  std::vector<Place> places;
  for (const TcpAddress& address : addresses) places.push_back({address.host(), address.port()});
  return places;
}

std::string version_text(const std::string& version, std::uint32_t protocol) {
  return "hvdtune " + version + " (protocol " + std::to_string(protocol) + ")";
}

// ---- rank 0 -------------------------------------------------------------------------------------

/// Rank 0's side of the meeting.
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

  /// Returns the directory, after all others have received it.
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
        // A rank that is at the listener, or arrives soon, also learns of it.
        fail(ErrorKind::kTimeout, absent());
      } else {
        return;
      }
    }
    if (directory_.error.empty()) learn_places();
  }

  std::optional<TcpListener::Comer> next() {
    while (true) {
      options_.on_wait();
      auto comer = listener_->accept(std::min(deadline_, monotonic_now() + tcp::kWaitSlice));
      if (comer || monotonic_now() >= deadline_) return comer;
    }
  }

  /// Tells the ranks that are there, and those that still arrive soon.
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

  /// If a rank's address, which it has sent, stayed unread, closing would make the kernel drop the
  /// answer. So read from the ranks until they have received the answer and hang up.
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

  /// True if a rank of this job arrived, accepted or not.
  bool admit(TcpListener::Comer comer) {
    Introduction introduction;
    try {
      introduction = Introduction::decode(comer.message);
    } catch (const wire::DecodeError&) {
      return false;
    }
    if (introduction.meeting.empty() && directory_.error.empty()) check(introduction, comer.from);
    if (!introduction.meeting.empty()) return false;  // from a meeting that is over
    if (!directory_.error.empty()) {
      refuse(std::move(comer.socket));
      return true;
    }
    const auto rank = static_cast<std::size_t>(introduction.from);
    configure_lane(comer.socket, Lane::kNotices, options_.vanish);
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

  /// `silent`: a rank that came, but has not said all that it has to say; 0 = none.
  [[nodiscard]] std::string absent(std::size_t silent = 0) const {
    const int last = options_.shown(options_.size - 1);
    std::vector<bool> present(static_cast<std::size_t>(last) + 1, true);
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
      const int name = options_.shown(static_cast<int>(rank));
      present[static_cast<std::size_t>(name)] = sockets_[rank].valid() && rank != silent;
    }
    return absence_text(present, options_.timeout);
  }

  /// The ranks sent them right after the introductions.
  void learn_places() {
    for (std::size_t rank = 1; rank < sockets_.size(); ++rank) {
      std::string message;
      const auto outcome =
          tcp::receive_message(sockets_[rank], message, deadline_, options_.on_wait);
      if (outcome == tcp::Outcome::kTimeout) return fail(ErrorKind::kTimeout, absent(rank));
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
    return name_of(options_.shown(static_cast<int>(rank)), entry.pid, entry.hostname) + " " +
           kEndedEarly + (why.empty() ? "" : ": " + why);
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

/// A rank's connections after it has reached rank 0.
struct Visit {
  Fd rank0;
  std::shared_ptr<TcpListener> listener;  // null: no rank connects to this one
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
  const std::string self = "rank " + std::to_string(options.shown(options.rank));
  if (attempt.refused) {
    throw Error(ErrorKind::kInvalidArgument,
                self + " cannot join rank 0 at " + where + ": " + attempt.why);
  }
  throw Error(ErrorKind::kTimeout, leader_absence_text(0, options.timeout) + ": " + self + " on " +
                                       options.hostname + " cannot reach it at " + where + " (" +
                                       attempt.why + ")");
}

std::shared_ptr<TcpListener> listen_for_higher_ranks(const RendezvousOptions& options,
                                                     const Fd& rank0) {
  if (options.rank + 1 >= options.size) return nullptr;
  const std::vector<TcpAddress> addresses =
      options.interfaces.empty() ? std::vector{TcpAddress::local(rank0.get()).with_port(0)}
                                 : interface_addresses(options.interfaces);
  return std::make_shared<TcpListener>(addresses, options.secret, most_pending(options.size));
}

/// Sends this rank's address, and receives rank 0's answer. A failure here meanwhile is reported to
/// rank 0, which tells all.
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
    // Even if that failed: rank 0 may have sent the reason why it ended.
    return tcp::receive_message(visit.rank0, message, last, options.on_wait);
  } catch (const std::exception& error) {
    if (!said) say_places({});
    const std::string notice =
        Mesh::abort_notice(name_of(options.shown(options.rank), getpid(), options.hostname) +
                           " has failed: " + error.what());
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
  // Rank 0's timeout starts when rank 0 does, perhaps much later than this rank's.
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
  return std::make_shared<TcpListener>(addresses, options.secret, most_pending(options.size));
}

std::unique_ptr<Mesh> form_mesh(const RendezvousOptions& options) {
  HVD_CHECK(options.rank >= 0 && options.rank < options.size);
  if (options.size > kMaxMeshRanks) {
    throw Error(ErrorKind::kInvalidArgument, "a job of " + std::to_string(options.size) +
                                                 " processes cannot use sockets: at most " +
                                                 std::to_string(kMaxMeshRanks) +
                                                 " can be connected with each other");
  }
  allow_files(options.size);
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
