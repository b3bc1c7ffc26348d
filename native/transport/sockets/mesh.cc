#include "transport/sockets/mesh.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "transport/sockets/rank_name.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {
namespace {

constexpr std::size_t kMostNotice = 4096;
constexpr std::uint32_t kWakeupKey = UINT32_MAX;
// How long to wait for the reason why a connection ended: it arrives on another one.
constexpr Nanos kReasonTime = 2 * kSecond;

}  // namespace

Mesh::Mesh(int rank, std::vector<Peer> peers, Nanos vanish)
    : rank_(rank),
      vanish_(vanish),
      peers_(std::move(peers)),
      states_(peers_.size(), State::kPresent),
      received_(peers_.size()),
      attention_(epoll_create1(EPOLL_CLOEXEC)),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!attention_.valid() || !wakeup_.valid()) {
    throw Error(ErrorKind::kAborted,
                std::string("cannot watch connections: ") + std::strerror(errno));
  }
  watch(wakeup_.get(), kWakeupKey);
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].notices.valid()) {
      watch(peers_[peer].notices.get(), static_cast<std::uint32_t>(peer));
    }
  }
}

Mesh::~Mesh() { say_goodbye(); }

void Mesh::say_goodbye() {
  const std::lock_guard lock(abort_mutex_);
  if (aborted() || std::exchange(has_said_goodbye_, true)) return;
  for (const Peer& peer : peers_) tell(peer, Notice::kGoodbye, "");
}

void Mesh::watch(int fd, std::uint32_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = key;
  if (epoll_ctl(attention_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(ErrorKind::kAborted, std::string("cannot watch a connection: ") + strerror(errno));
  }
}

const Mesh::Peer& Mesh::peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

int Mesh::shown(int rank) const {
  return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
}

std::string Mesh::name(int rank) const {
  return name_of(shown(rank), peer(rank).pid, peer(rank).hostname);
}

void Mesh::ask_outside() {
  if (!outside_cause_) return;
  const Status cause = outside_cause_();
  if (cause.ok()) return;
  abort(cause.text);
  throw_if_aborted();
}

bool Mesh::await_goodbye(int rank, Nanos deadline) {
  do {
    look();
  } while (!has_left(rank) && tcp::wait_for(attention_.get(), POLLIN, deadline));
  return has_left(rank);
}

void Mesh::abandon() {
  for (Peer& peer : peers_) {
    peer.notices = Fd();
    peer.data = Fd();
  }
}

void Mesh::add_notices(int rank, Fd socket) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  HVD_CHECK(!peer.notices.valid());
  peer.notices = std::move(socket);
  watch(peer.notices.get(), static_cast<std::uint32_t>(rank));
}

void Mesh::add_data(int rank, Fd socket) {
  Fd& data = peers_[static_cast<std::size_t>(rank)].data;
  HVD_CHECK(!data.valid());
  data = std::move(socket);
}

/// The buffer of a connection that carries only notices has room. If not, the peer does not read,
/// and will see the connection end.
void Mesh::tell(const Peer& peer, Notice notice, std::string_view text) const {
  if (!peer.notices.valid()) return;
  const std::string message = framed(notice, text);
  [[maybe_unused]] const auto sent =
      send(peer.notices.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string Mesh::framed(Notice notice, std::string_view text) {
  std::string message(1, static_cast<char>(notice));
  message.append(utf8_prefix(text, kMostNotice - 1));
  return tcp::with_length(message);
}

std::string Mesh::abort_notice(std::string_view text) { return framed(Notice::kAbort, text); }

void Mesh::abort(const std::string& text) noexcept {
  const std::lock_guard lock(abort_mutex_);
  if (aborted()) return;
  abort_text_ = text;
  aborted_.store(true, std::memory_order_release);
  for (const Peer& peer : peers_) tell(peer, Notice::kAbort, text);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wakeup_.get(), &one, sizeof(one));
}

Status Mesh::abort_status() const {
  const std::lock_guard lock(abort_mutex_);
  return aborted() ? Status{ErrorKind::kAborted, abort_text_} : Status{};
}

void Mesh::throw_if_aborted() const {
  if (aborted()) throw Error(abort_status());
}

void Mesh::look() {
  throw_if_aborted();
  epoll_event events[16];
  const int ready = epoll_wait(attention_.get(), events, 16, 0);
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.u32 != kWakeupKey) read_notices(static_cast<int>(events[i].data.u32));
  }
  throw_if_aborted();
}

void Mesh::read_notices(int rank) {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::string& received = received_[static_cast<std::size_t>(rank)];
  while (true) {
    char bytes[1024];
    const ssize_t got = recv(peer.notices.get(), bytes, sizeof(bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return ended(rank, got == 0 ? 0 : errno);
    received.append(bytes, static_cast<std::size_t>(got));
    if (!take_notices(rank, received)) {
      return abort(name(rank) + " sent a message that this version of hvdtune does not understand");
    }
  }
}

bool Mesh::take_notices(int rank, std::string& received) {
  while (received.size() >= tcp::kLengthBytes) {
    std::uint32_t length = 0;
    std::memcpy(&length, received.data(), sizeof(length));
    if (length == 0 || length > kMostNotice) return false;
    if (received.size() < tcp::kLengthBytes + length) return true;
    const std::string notice = received.substr(tcp::kLengthBytes, length);
    received.erase(0, tcp::kLengthBytes + length);
    switch (static_cast<Notice>(notice[0])) {
      case Notice::kAbort:
        abort(notice.substr(1));
        break;
      case Notice::kGoodbye:
        states_[static_cast<std::size_t>(rank)] = State::kLeft;
        break;
      default:
        return false;
    }
  }
  return true;
}

/// The connection for notices has ended.
void Mesh::ended(int rank, int error) {
  epoll_ctl(attention_.get(), EPOLL_CTL_DEL, peer(rank).notices.get(), nullptr);
  if (has_left(rank)) return;
  if (error == 0 || error == ECONNRESET || error == EPIPE) {
    abort(name(rank) + " died: its process ended without shutting down. The job cannot go on.");
  } else {
    abort(name(rank) + " is lost: " + tcp::describe_failure(error, vanish_) + ".");
  }
}

void Mesh::hear_reason(int rank) { await_goodbye(rank, monotonic_now() + kReasonTime); }

void Mesh::lost(int rank, int error) {
  if (await_goodbye(rank, monotonic_now() + kReasonTime)) {
    abort(name(rank) + " has shut down, but rank " + std::to_string(shown(rank_)) +
          " still needs it.");
  } else {
    abort("the connection between rank " + std::to_string(shown(rank_)) + " and " + name(rank) +
          " broke: " + tcp::describe_failure(error, vanish_) + ".");
  }
  throw Error(abort_status());
}

}  // namespace hvdtune
