#include "collective/sockets/socket_streams.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "transport/sockets/tcp_socket.h"

namespace hvdtune {
namespace {

constexpr std::uint32_t kHeaderMagic = 0x68766f70;  // "hvop"
// Limits of pieces and bytes in one system call, so that one member does not keep the others
// waiting.
constexpr std::size_t kPiecesAtOnce = 256;
constexpr std::size_t kBytesAtOnce = 1 << 20;
// How often to ask whether the job has ended for a reason that no connection shows.
constexpr Nanos kOutsideSlice = 50 * kMillisecond;

/// The beginning of a queue, at most kBytesAtOnce.
std::size_t take_pieces(const std::vector<iovec>& pieces, std::size_t next, iovec* to,
                        std::size_t& bytes) {
  std::size_t count = 0;
  bytes = 0;
  while (next + count < pieces.size() && count < kPiecesAtOnce && bytes < kBytesAtOnce) {
    to[count] = pieces[next + count];
    to[count].iov_len = std::min(to[count].iov_len, kBytesAtOnce - bytes);
    bytes += to[count].iov_len;
    ++count;
  }
  return count;
}

}  // namespace

void SocketStreams::Queue::add(void* data, std::size_t bytes) {
  if (bytes == 0) return;
  pieces.push_back({data, bytes});
  queued += bytes;
}

void SocketStreams::Queue::advance(std::size_t bytes) {
  moved += bytes;
  while (bytes > 0) {
    iovec& piece = pieces[next];
    const std::size_t part = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
    piece.iov_len -= part;
    bytes -= part;
    if (piece.iov_len == 0) ++next;
  }
  if (empty()) {
    pieces.clear();
    next = 0;
  }
}

void SocketStreams::Queue::clear() {
  HVD_CHECK(empty());
  queued = 0;
  moved = 0;
  ready = true;
}

SocketStreams::SocketStreams(std::shared_ptr<Mesh> mesh, std::vector<int> members, int index,
                             int number, Patience patience)
    : mesh_(std::move(mesh)),
      ranks_(std::move(members)),
      self_(static_cast<std::size_t>(index)),
      number_(static_cast<std::uint16_t>(number)),
      patience_(patience),
      peers_(ranks_.size()) {
  for (std::size_t member = 0; member < peers_.size(); ++member) {
    if (member != self_) peers_[member].socket = mesh_->peer(ranks_[member]).data.get();
  }
}

void SocketStreams::begin(OpKind kind) {
  current_.magic = kHeaderMagic;
  current_.communicator = number_;
  current_.kind = static_cast<std::uint16_t>(kind);
  ++current_.serial;
  blamed_ = -1;
  if (mesh_->aborted()) throw Error(mesh_->abort_status());
  if (in_operation_) {
    mesh_->abort(mesh_->name(mesh_->rank()) +
                 " has left an operation in the middle. The job cannot go on.");
    throw Error(mesh_->abort_status());
  }
  in_operation_ = true;
}

void SocketStreams::end() {
  for (Peer& peer : peers_) {
    peer.out.clear();
    peer.in.clear();
  }
  in_operation_ = false;
}

void SocketStreams::open(std::size_t member, std::size_t bytes_to_follow) {
  Peer& peer = peers_[member];
  HVD_CHECK(peer.out.queued == 0);
  peer.sent_header = current_;
  peer.sent_header.bytes = bytes_to_follow;
  peer.out.add(&peer.sent_header, sizeof(Header));
}

void SocketStreams::expect(std::size_t member) {
  Peer& peer = peers_[member];
  HVD_CHECK(peer.in.queued == 0);
  peer.in.add(&peer.header, sizeof(Header));
}

void SocketStreams::check(std::size_t member, std::size_t bytes) const {
  HVD_CHECK(received(member) >= sizeof(Header));
  if (peers_[member].header.bytes != bytes) disagree(member, "lengths");
}

void SocketStreams::disagree(std::size_t member, const char* what) const {
  mesh_->abort("rank " + std::to_string(mesh_->rank()) + " and " + mesh_->name(ranks_[member]) +
               " do not agree about the " + what +
               " of an operation over sockets; this is a bug of hvdtune. The job cannot go on.");
  throw Error(mesh_->abort_status());
}

void SocketStreams::send(std::size_t member, const std::byte* data, std::size_t bytes) {
  peers_[member].out.add(const_cast<std::byte*>(data), bytes);  // iovec serves both directions
}

void SocketStreams::send(std::size_t member, const SegmentList& data, std::size_t begin,
                         std::size_t bytes) {
  data.for_range(begin, bytes,
                 [&](const std::byte* piece, std::size_t length) { send(member, piece, length); });
}

void SocketStreams::receive(std::size_t member, std::byte* to, std::size_t bytes) {
  peers_[member].in.add(to, bytes);
}

void SocketStreams::receive(std::size_t member, const SegmentList& to) {
  to.for_range(0, to.bytes(),
               [&](std::byte* piece, std::size_t length) { receive(member, piece, length); });
}

bool SocketStreams::all_received() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.in.empty(); });
}

void SocketStreams::move_all() {
  move_until([this] {
    return all_received() && std::all_of(peers_.begin(), peers_.end(),
                                         [](const Peer& peer) { return peer.out.empty(); });
  });
}

/// Returns whether anything was transferred. Each member begins with the next one, so that they do
/// not all start with the same.
bool SocketStreams::move() {
  bool moved = false;
  for (std::size_t turn = 1; turn < peers_.size(); ++turn) {
    const std::size_t member = (self_ + turn) % peers_.size();
    const Peer& peer = peers_[member];
    if (!peer.out.empty() && peer.out.ready) moved |= move_out(member);
    if (!peer.in.empty() && peer.in.ready) moved |= move_in(member);
  }
  return moved;
}

bool SocketStreams::move_out(std::size_t member) {
  Peer& peer = peers_[member];
  iovec pieces[kPiecesAtOnce];
  std::size_t bytes = 0;
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = take_pieces(peer.out.pieces, peer.out.next, pieces, bytes);
  const ssize_t sent = sendmsg(peer.socket, &message, MSG_NOSIGNAL);
  if (sent < 0 && errno == EINTR) return true;
  if (sent < 0 && errno != EAGAIN) mesh_->lost(ranks_[member], errno);
  peer.out.ready = sent == static_cast<ssize_t>(bytes);
  if (sent <= 0) return false;
  peer.out.advance(static_cast<std::size_t>(sent));
  return true;
}

bool SocketStreams::move_in(std::size_t member) {
  Peer& peer = peers_[member];
  iovec pieces[kPiecesAtOnce];
  std::size_t bytes = 0;
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = take_pieces(peer.in.pieces, peer.in.next, pieces, bytes);
  const ssize_t got = recvmsg(peer.socket, &message, 0);
  if (got < 0 && errno == EINTR) return true;
  if (got == 0 || (got < 0 && errno != EAGAIN)) mesh_->lost(ranks_[member], got == 0 ? 0 : errno);
  peer.in.ready = got == static_cast<ssize_t>(bytes);
  if (got <= 0) return false;
  const bool had_header = peer.in.moved >= sizeof(Header);
  peer.in.advance(static_cast<std::size_t>(got));
  if (!had_header && peer.in.moved >= sizeof(Header)) {
    const Header& theirs = peer.header;
    if (theirs.magic != current_.magic || theirs.communicator != current_.communicator ||
        theirs.kind != current_.kind || theirs.serial != current_.serial) {
      disagree(member, "order");
    }
  }
  return true;
}

void SocketStreams::wait() {
  if (!timed_) return sleep();
  const Nanos began = monotonic_now();
  sleep();
  waited_ += monotonic_now() - began;
}

void SocketStreams::show_that_it_waits() {
  if (seen_ != nullptr) seen_->store(monotonic_now(), std::memory_order_relaxed);
}

/// Sleeps until a connection can go on, or there is a notice.
void SocketStreams::sleep() {
  entries_.assign(1, {mesh_->attention(), POLLIN, 0});
  waiting_.clear();
  for (std::size_t member = 0; member < peers_.size(); ++member) {
    const Peer& peer = peers_[member];
    const int events = (peer.out.empty() ? 0 : POLLOUT) | (peer.in.empty() ? 0 : POLLIN);
    if (events == 0) continue;
    entries_.push_back({peer.socket, static_cast<short>(events), 0});
    waiting_.push_back(member);
  }
  HVD_CHECK(!waiting_.empty());  // or nothing could end this wait
  show_that_it_waits();
  const auto ready = [this] { return poll(entries_.data(), entries_.size(), 0) > 0; };
  if (!patience_.wait(ready)) {
    const Nanos began = monotonic_now();
    reported_ = began;
    while (true) {
      const Nanos slice = mesh_->has_outside_cause() ? kOutsideSlice : kForever;
      const Nanos pause = std::min(absence_limit_, slice);
      const Nanos until = pause == kForever ? kForever : monotonic_now() + pause;
      show_that_it_waits();
      if (poll(entries_.data(), entries_.size(), tcp::milliseconds_until(until)) > 0) break;
      mesh_->ask_outside();
      look_for_absent(began);
    }
  }
  if (entries_[0].revents != 0) mesh_->look();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const short events = entries_[i + 1].revents;
    Peer& peer = peers_[waiting_[i]];
    // The next call reports an error.
    if ((events & ~POLLIN) != 0) peer.out.ready = true;
    if ((events & ~POLLOUT) != 0) peer.in.ready = true;
  }
}

void SocketStreams::time_waits(bool timed) {
  timed_ = timed;
  waited_ = 0;
}

void SocketStreams::report_absence(Nanos limit, AbsenceReport report) {
  absence_limit_ = limit;
  report_ = std::move(report);
}

/// The members that have sent least: a member that only waits for others has sent all it could.
std::vector<std::size_t> SocketStreams::absent() const {
  const auto is_missing = [this](std::size_t member) {
    return !peers_[member].in.empty() || !peers_[member].out.empty();
  };
  if (blamed_ >= 0 && is_missing(static_cast<std::size_t>(blamed_))) {
    return {static_cast<std::size_t>(blamed_)};
  }
  std::vector<std::size_t> missing;
  for (std::size_t member = 0; member < peers_.size(); ++member) {
    if (member == self_ || !is_missing(member)) continue;
    if (!missing.empty() && received(member) > received(missing.front())) continue;
    if (!missing.empty() && received(member) < received(missing.front())) missing.clear();
    missing.push_back(member);
  }
  return missing;
}

/// All waiting members see about the same; the first of them reports.
void SocketStreams::look_for_absent(Nanos began) {
  const Nanos now = monotonic_now();
  if (now - reported_ < absence_limit_) return;
  reported_ = now;
  const std::vector<std::size_t> missing = absent();
  if (missing.empty()) return;
  for (std::size_t member = 0; member < self_; ++member) {
    if (std::find(missing.begin(), missing.end(), member) == missing.end()) return;
  }
  std::vector<int> ranks;
  for (const std::size_t member : missing) ranks.push_back(ranks_[member]);
  report_(ranks, now - began);
}

}  // namespace hvdtune
