#include "transport/meeting/meet_on_host.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/cpu/affinity.h"
#include "base/cpu/cpu.h"
#include "base/sha256.h"
#include "transport/meeting/roll_call.h"
#include "transport/sockets/tcp_socket.h"
#include "transport/sockets/unix_acceptor.h"
#include "transport/sockets/unix_socket.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

constexpr std::uint64_t kMagic = 0x68766474'0001'0008;  // "hvdt", protocol version
// Pause between two looks for the leader if it cannot notify this process.
constexpr Nanos kRetry = 5 * kMillisecond;
// How long the leader reports a disagreement to ranks that still arrive.
constexpr Nanos kGrace = 3 * kSecond;
// Sent after the welcome, with the heap's descriptor if there is a heap.
constexpr const char* kHeap = "heap";

struct Hello {
  int rank = 0;
  int size = 0;
  int pid = 0;
  std::string hostname;
  std::string secret;
  std::string agreement;
  CpuShare cpus;

  [[nodiscard]] std::string encode() const {
    wire::Encoder out;
    out.put(kMagic).put(rank).put(size).put(pid).put(hostname).put(secret).put(agreement);
    out.put_all(cpus.mask).put(cpus.usable);
    return out.take();
  }

  static Hello decode(std::string_view bytes) {
    wire::Decoder in(bytes);
    if (in.get<std::uint64_t>() != kMagic) throw wire::DecodeError("another protocol version");
    Hello hello;
    hello.rank = in.get<int>();
    hello.size = in.get<int>();
    hello.pid = in.get<int>();
    hello.hostname = in.get_string();
    hello.secret = in.get_string();
    hello.agreement = in.get_string();
    hello.cpus.mask = in.get_all<std::uint64_t>();
    hello.cpus.usable = in.get<int>();
    in.finish();
    return hello;
  }
};

/// The leader's answer: an error for all, or the list of ranks (with the arena's descriptor).
std::string encode_welcome(const std::string& error, const std::vector<PeerInfo>& peers) {
  wire::Encoder out;
  out.put(kMagic).put(error).put(static_cast<std::uint32_t>(peers.size()));
  for (const PeerInfo& peer : peers) {
    out.put(peer.hostname).put(peer.pid).put(static_cast<std::uint8_t>(peer.here));
  }
  return out.take();
}

std::string decode_welcome(std::string_view bytes, std::vector<PeerInfo>& peers) {
  wire::Decoder in(bytes);
  if (in.get<std::uint64_t>() != kMagic) throw wire::DecodeError("another protocol version");
  std::string error = in.get_string();
  peers.resize(in.get_count(sizeof(std::uint32_t) + sizeof(int) + sizeof(std::uint8_t)));
  for (PeerInfo& peer : peers) {
    peer.hostname = in.get_string();
    peer.pid = in.get<int>();
    peer.here = in.get<std::uint8_t>() != 0;
  }
  return error;
}

std::vector<int> local_ranks(const MeetingOptions& options) {
  if (!options.local.empty()) return options.local;
  std::vector<int> ranks(static_cast<std::size_t>(options.size));
  for (int rank = 0; rank < options.size; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  return ranks;
}

int leader_of(const MeetingOptions& options) {
  return options.local.empty() ? 0 : options.local.front();
}

/// "rank 2"
std::string leader_name(const MeetingOptions& options) {
  return "rank " + std::to_string(leader_of(options));
}

/// A session in which only the ranks are set.
HostSession new_session(const MeetingOptions& options) {
  HostSession session;
  session.local = local_ranks(options);
  session.leader = session.local.front();
  session.peers.resize(static_cast<std::size_t>(options.size));
  session.sockets.resize(static_cast<std::size_t>(options.size));
  return session;
}

/// The mailbox where a rank that arrived before its leader waits for it.
std::string mailbox_name(const MeetingOptions& options, int rank) {
  return options.endpoint + "/" + std::to_string(rank);
}

/// The leader's side of the meeting; of a job on one host, that is rank 0.
class Host {
 public:
  explicit Host(const MeetingOptions& options)
      : options_(options),
        deadline_(monotonic_now() + options.timeout),
        session_(new_session(options)) {
    session_.peers[static_cast<std::size_t>(options.rank)] = {options.hostname, getpid()};
    cpus_.push_back(this_cpu_share());
  }

  HostSession run() {
    Fd listener = unix_socket::listen(options_.endpoint);
    UnixAcceptor acceptor(listener);
    if (!listener.valid()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "another process already is " + leader_name(options_) + " of job " +
                      options_.endpoint +
                      "; two jobs must not share HVDTUNE_JOB_ID, and one rank must not be given "
                      "to two processes");
    }
    notify_early_ones();
    // Go on after a disagreement: ranks that arrive later must learn of it, not wait for the
    // timeout.
    std::size_t missing = session_.local.size() - 1;
    while (missing > 0) {
      Fd socket;
      while (!socket.valid() && monotonic_now() < deadline_) {
        options_.on_wait();
        socket = acceptor.next(std::min(deadline_, monotonic_now() + tcp::kWaitSlice));
      }
      if (!socket.valid()) {
        if (!error_.empty()) break;
        error_ = absent();
        kind_ = ErrorKind::kTimeout;
        break;
      }
      if (admit(std::move(socket))) --missing;
    }
    if (error_.empty()) {
      session_.arena =
          Arena::create(options_.size, options_.cpus > 0 ? options_.cpus : cpus_together(cpus_),
                        static_cast<int>(session_.local.size()));
      // If another host coordinates, it is always told what a rank waits for: see Bridge.
      if (session_.leader != 0) session_.arena->collecting() = 1;
      // A reduction in place needs all ranks on one host.
      if (options_.local.empty()) session_.heap = HeapFile::create(options_.size);
    }
    answer();
    if (!error_.empty()) throw Error(kind_, error_);
    return std::move(session_);
  }

 private:
  void notify_early_ones() const {
    std::vector<std::string> mailboxes;
    for (const int rank : session_.local) {
      if (rank != options_.rank) mailboxes.push_back(mailbox_name(options_, rank));
    }
    unix_socket::notify(mailboxes);
  }

  /// True if a rank of this job arrived, accepted or not. Strangers are turned away without an
  /// error.
  bool admit(Fd socket) {
    const auto [pid, uid] = unix_socket::peer_identity(socket);
    if (uid != getuid()) return false;
    std::string message;
    bool timed_out = false;
    const Nanos patience = std::min(deadline_, monotonic_now() + 5 * kSecond);
    if (!unix_socket::receive(socket, message, patience, timed_out)) return false;
    Hello hello;
    try {
      hello = Hello::decode(message);
    } catch (const wire::DecodeError& problem) {
      const std::string error = leader_name(options_) + " runs another version of hvdtune";
      unix_socket::send(socket, encode_welcome(error, {}));
      return false;
    }
    if (!equal_in_constant_time(hello.secret, options_.secret)) {
      const std::string error = leader_name(options_) +
                                " does not accept this process: its HVDTUNE_SECRET is not the "
                                "job's";
      unix_socket::send(socket, encode_welcome(error, {}));
      return false;
    }
    if (error_.empty()) {
      check(hello);
      if (!error_.empty()) deadline_ = std::min(deadline_, monotonic_now() + kGrace);
    }
    if (!error_.empty()) {
      refused_.push_back(std::move(socket));
      return true;
    }
    const auto rank = static_cast<std::size_t>(hello.rank);
    session_.sockets[rank] = std::move(socket);
    cpus_.push_back(hello.cpus);
    // In another pid namespace the process has another pid than here, or none here (0).
    session_.peers[rank] = {hello.hostname, pid != 0 ? pid : hello.pid, pid != 0};
    return true;
  }

  void check(const Hello& hello) {
    const auto rank = static_cast<std::size_t>(hello.rank);
    const bool taken = rank < session_.sockets.size() && session_.sockets[rank].valid();
    error_ = objection_to(
        {hello.rank, hello.size, hello.pid, hello.hostname, hello.agreement},
        {options_.rank, options_.size, getpid(), options_.hostname, options_.agreement},
        taken ? session_.peers[rank].pid : 0);
    const std::vector<int>& here = session_.local;
    if (error_.empty() && std::find(here.begin(), here.end(), hello.rank) == here.end()) {
      error_ = "rank " + std::to_string(hello.rank) + " contacted the ranks of another host";
    }
  }

  [[nodiscard]] std::string absent() const {
    std::vector<bool> present(session_.sockets.size(), true);
    for (const int rank : session_.local) {
      const auto at = static_cast<std::size_t>(rank);
      present[at] = rank == options_.rank || session_.sockets[at].valid();
    }
    return absence_text(present, options_.timeout);
  }

  void answer() {
    const std::string welcome = encode_welcome(error_, session_.peers);
    const int fd = session_.arena ? session_.arena->fd() : -1;
    for (const Fd& socket : session_.sockets) {
      if (!socket.valid()) continue;
      unix_socket::send(socket, welcome, fd);
      if (error_.empty())
        unix_socket::send(socket, kHeap, session_.heap ? session_.heap->fd() : -1);
    }
    for (const Fd& socket : refused_) unix_socket::send(socket, welcome);
  }

  const MeetingOptions& options_;
  Nanos deadline_;
  HostSession session_;
  std::vector<Fd> refused_;
  std::vector<CpuShare> cpus_;  // of the ranks that came
  std::string error_;
  ErrorKind kind_ = ErrorKind::kInvalidArgument;
};

/// Looks for the leader, opens a mailbox, and looks again. The leader first listens and then
/// notifies, so it is either found or sends a notice. A rank that arrives early can therefore sleep
/// instead of polling.
Fd connect_to_leader(const MeetingOptions& options, Nanos deadline) {
  Fd mailbox;
  for (bool first = true;; first = false) {
    Fd socket = unix_socket::connect(options.endpoint);
    if (socket.valid()) return socket;
    if (first) {
      mailbox = unix_socket::open_mailbox(mailbox_name(options, options.rank));
      continue;
    }
    if (monotonic_now() >= deadline) {
      throw Error(ErrorKind::kTimeout, leader_absence_text(leader_of(options), options.timeout));
    }
    options.on_wait();
    if (mailbox.valid()) {
      unix_socket::await_notice(mailbox, std::min(deadline, monotonic_now() + tcp::kWaitSlice));
    } else {  // another process claims to be this rank; the leader will say so
      const timespec pause{0, kRetry};
      nanosleep(&pause, nullptr);
    }
  }
}

/// Reads the leader's answer; false if it hung up or the deadline has passed (then `timed_out`).
bool ask_leader(const MeetingOptions& options, const Fd& socket, Nanos deadline,
                std::string& answer, Fd& arena_fd, bool& timed_out) {
  if (unix_socket::peer_identity(socket).uid != getuid()) {
    throw Error(ErrorKind::kInvalidArgument, "the process that claims to be " +
                                                 leader_name(options) + " of job " +
                                                 options.endpoint + " belongs to another user");
  }
  const Hello hello{options.rank,   options.size,      getpid(),        options.hostname,
                    options.secret, options.agreement, this_cpu_share()};
  unix_socket::send(socket, hello.encode());
  bool received = false;
  do {
    options.on_wait();
    const Nanos slice = std::min(deadline, monotonic_now() + tcp::kWaitSlice);
    received = unix_socket::receive(socket, answer, slice, timed_out, &arena_fd);
  } while (!received && timed_out && monotonic_now() < deadline);
  return received;
}

[[noreturn]] void report_ended_leader(const MeetingOptions& options) {
  options.hear_reason();
  throw Error(ErrorKind::kAborted,
              leader_name(options) + " ended before all processes of the job had come");
}

/// Turns `session.peers` from how the leader sees them into how this process does. `leader_pid`:
/// the leader's pid here; 0 = it has none.
void look_from_here(HostSession& session, const MeetingOptions& options, pid_t leader_pid) {
  PeerInfo& leader = session.peers[static_cast<std::size_t>(session.leader)];
  // If the leader has the pid here that it has for itself, all pids that it knows are valid here.
  const bool same_pids = leader_pid == leader.pid;
  for (const int rank : session.local) {
    PeerInfo& peer = session.peers[static_cast<std::size_t>(rank)];
    peer.here = peer.here && same_pids;
  }
  if (leader_pid != 0) leader = {leader.hostname, leader_pid, true};
  session.peers[static_cast<std::size_t>(options.rank)] = {options.hostname, getpid(), true};
}

HostSession join(const MeetingOptions& options) {
  Fd socket = connect_to_leader(options, monotonic_now() + options.timeout);
  // The leader's timeout starts when the leader does, perhaps much later than this rank's; leave
  // time for its verdict to arrive.
  const Nanos last = monotonic_now() + options.timeout + 5 * kSecond;
  std::string message;
  Fd arena_fd;
  bool timed_out = false;
  bool received = ask_leader(options, socket, last, message, arena_fd, timed_out);
  if (!received && !timed_out) {
    // The leader hangs up on a process that stays silent for seconds, for example because it was
    // suspended before its hello. If the leader is still there, it waits for this rank.
    if (Fd another = unix_socket::connect(options.endpoint); another.valid()) {
      socket = std::move(another);
      received = ask_leader(options, socket, last, message, arena_fd, timed_out);
    }
  }
  if (!received && timed_out) {
    throw Error(ErrorKind::kTimeout, leader_name(options) + " did not answer in time");
  }
  if (!received) report_ended_leader(options);
  HostSession session = new_session(options);
  std::string error;
  try {
    error = decode_welcome(message, session.peers);
  } catch (const wire::DecodeError&) {
    error = leader_name(options) + " runs another version of hvdtune";
  }
  if (!error.empty()) {
    throw Error(is_absence_text(error) ? ErrorKind::kTimeout : ErrorKind::kInvalidArgument, error);
  }
  session.arena = Arena::attach(arena_fd.get(), options.size);
  Fd heap_fd;
  if (!unix_socket::receive(socket, message, last, timed_out, &heap_fd) || message != kHeap) {
    report_ended_leader(options);
  }
  if (heap_fd.valid()) session.heap = HeapFile::attach(heap_fd.get(), options.size);
  look_from_here(session, options, unix_socket::peer_identity(socket).pid);
  session.sockets[static_cast<std::size_t>(session.leader)] = std::move(socket);
  return session;
}

}  // namespace

HostSession meet_on_host(const MeetingOptions& options) {
  HostSession session = new_session(options);
  if (session.local.size() > std::size_t{kMaxRanksPerHost}) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(session.local.size()) + " processes on one host; at most " +
                    std::to_string(kMaxRanksPerHost) + " are supported");
  }
  if (session.local.size() == 1) {
    session.arena = Arena::create(options.size, usable_cpus(), 1);
    if (session.leader != 0) session.arena->collecting() = 1;
    session.peers[static_cast<std::size_t>(options.rank)] = {options.hostname, getpid()};
    return session;
  }
  return options.rank == session.leader ? Host(options).run() : join(options);
}

}  // namespace hvdtune
