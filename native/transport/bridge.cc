#include "transport/bridge.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/check.h"
#include "transport/tcp_socket.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

using wire::News;
using wire::NewsType;

// Where a connection takes no more, or local ranks have not read yet what has come: from one look
// to the next.
constexpr Nanos kFirstPause = kMillisecond;
constexpr Nanos kLongestPause = 100 * kMillisecond;
constexpr Nanos kRetrySend = 500 * kMicrosecond;
constexpr Nanos kRetryFullRing = 200 * kMicrosecond;
// How long stop() waits for others to have got, and read, the end of the job.
constexpr Nanos kEndPatience = 3 * kSecond;
constexpr Nanos kLeavePatience = 500 * kMillisecond;
// How long to wait for the reason why a connection ended.
constexpr Nanos kReasonTime = 2 * kSecond;
// Not sent yet: beyond that, nothing more is collected.
constexpr std::size_t kMostUnsent = 4 << 20;
constexpr std::size_t kReadAtOnce = 256 << 10;

/// The state words that only rank 0's host changes.
enum State : std::uint32_t {
  kJoined,
  kWatched,
  kEnded,
  kStallChecks,
  kEndPosition,
  kRecordingDecided,
  kStates
};

std::array<std::uint64_t, kStates> states_of(Arena& arena) {
  return {arena.joined().load(),       arena.watched().load(),
          arena.ended().load(),        arena.stall_checks().load(),
          arena.end_position().load(), arena.recording_decided().load()};
}

void set_state(Arena& arena, std::uint32_t state, std::uint64_t value) {
  const auto word = static_cast<std::uint32_t>(value);
  switch (state) {
    case kJoined:
      arena.joined().store(word);
      return;
    case kWatched:
      arena.watched().store(word);
      return;
    case kEnded:
      arena.ended().store(word);
      return;
    case kStallChecks:
      arena.stall_checks().store(word);
      return;
    case kEndPosition:
      arena.end_position().store(value);
      return;
    case kRecordingDecided:
      arena.recording_decided().store(word);
      futex_wake(&arena.recording_decided(), kWakeAll);
      return;
    default:
      throw wire::DecodeError("an unknown state");
  }
}

Nanos longer(Nanos pause) { return pause == 0 ? kFirstPause : std::min(2 * pause, kLongestPause); }

}  // namespace

Bridge::Bridge(HostSession& session, int rank, OnMessage on_message)
    : session_(session),
      arena_(*session.arena),
      own_(session.host_of[static_cast<std::size_t>(rank)]),
      on_message_(std::move(on_message)),
      leaders_(std::move(session.leaders)),
      schedule_(arena_.schedule()),
      hosts_(static_cast<std::size_t>(leaders_->size())),
      told_(session.peers.size()),
      backlog_(session.peers.size()),
      positions_(session.peers.size()),
      buffer_(kReadAtOnce),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_.valid()) {
    throw Error(ErrorKind::kAborted, std::string("cannot connect hosts: ") + strerror(errno));
  }
  for (int other = 0; other < arena_.ranks(); ++other) {
    announcements_.push_back(arena_.announcements(other));
    host(session.host_of[static_cast<std::size_t>(other)]).ranks.push_back(other);
    // Rank 0 waits for the slowest reader of all; elsewhere there is always room.
    if (!is_hub() && !session.is_here(other)) schedule_.advance(other, UINT64_MAX);
  }
  for (Host& other : hosts_) other.told.resize(kStates);
}

Bridge::~Bridge() { stop(); }

void Bridge::start() {
  running_ = 2;
  sender_ = std::thread([this] {
    send_main();
    end_of_thread();
  });
  receiver_ = std::thread([this] {
    receive_main();
    end_of_thread();
  });
  pthread_setname_np(sender_.native_handle(), "hvdtune-send");
  pthread_setname_np(receiver_.native_handle(), "hvdtune-receive");
}

void Bridge::end_of_thread() {
  const std::lock_guard lock(over_mutex_);
  --running_;
  over_changed_.notify_all();
}

bool Bridge::await_end(Nanos deadline) {
  std::unique_lock lock(over_mutex_);
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  return over_changed_.wait_until(lock, until, [this] { return running_ == 0; });
}

void Bridge::stop() {
  if (!sender_.joinable()) return;
  if (arena_.end_position().load() != 0 && !arena_.aborted()) {
    if (!await_end(monotonic_now() + kEndPatience)) {
      leave_now_ = true;
      wake();
      await_end(monotonic_now() + kLeavePatience);
    }
  }
  stopping_ = true;
  if (arena_.aborted()) leaders_->abort(arena_.abort_status().text);
  arena_.bridge_bell().wake_all();
  wake_receiver();
  sender_.join();
  if (receiver_.joinable()) receiver_.join();  // it is not, if the system gave no second thread
  leaders_.reset();
}

void Bridge::wake_receiver() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wakeup_.get(), &one, sizeof(one));
}

void Bridge::queue(Queued news) {
  const std::lock_guard lock(queue_mutex_);
  queue_.push_back(std::move(news));
}

bool Bridge::send(int rank, std::string_view message) {
  if (stopping_ || message.size() > wire::kMostNewsBytes) return false;
  queue({is_hub() ? session_.host_of[static_cast<std::size_t>(rank)] : 0, NewsType::kMessage,
         static_cast<std::uint32_t>(rank), std::string(message)});
  wake();
  return true;
}

void Bridge::release_slot(std::uint32_t slot) { queue({-1, NewsType::kReleaseSlot, slot, {}}); }

void Bridge::release_set(std::uint32_t set) { queue({-1, NewsType::kReleaseSet, set, {}}); }

// ---- the sending thread -------------------------------------------------------------------------

void Bridge::send_main() {
  Doorbell& bell = arena_.bridge_bell();
  while (!stopping_) {
    if (arena_.aborted()) return leaders_->abort(arena_.abort_status().text);
    bell.arm(Urgency::kNone, Sleeper::kThread);
    if (work()) continue;
    const std::uint32_t seen = bell.rings();
    bell.arm(Urgency::kNormal, Sleeper::kThread);
    if (work() || arena_.aborted()) continue;
    if (is_settled()) break;
    Nanos deadline = kForever;
    if (unsent_) {
      deadline = monotonic_now() + kRetrySend;
    } else if (arena_.end_position().load() != 0) {  // nothing rings when a rank has read the end
      send_pause_ = longer(send_pause_);
      deadline = monotonic_now() + send_pause_;
    }
    bell.sleep(seen, Sleeper::kThread, deadline);
  }
  // The process may end in any way from here on.
  leaders_->say_goodbye();
  has_left_ = true;
  wake_receiver();
}

/// Whether there is anything to be sent now.
bool Bridge::collect() {
  const auto unsent = [this] {
    std::size_t bytes = 0;
    for (const Host& other : hosts_) bytes += other.out.size();
    return bytes;
  };
  const std::size_t before = unsent();
  if (before > kMostUnsent) return false;
  if (is_hub()) {
    collect_from_hub();
  } else {
    collect_for_hub();
  }
  return unsent() != before;
}

void Bridge::append(int number, const News& news) {
  if (!host(number).left) wire::append_news(host(number).out, news);
}

void Bridge::append_queued() {
  {
    const std::lock_guard lock(queue_mutex_);
    taken_.swap(queue_);
  }
  for (const Queued& news : taken_) {
    for (int number = 0; number < leaders_->size(); ++number) {
      if (number == own_ || (news.host >= 0 && news.host != number)) continue;
      append(number, {news.type, news.number, 0, news.bytes});
    }
  }
  taken_.clear();
}

void Bridge::collect_for_hub() {
  if (told_leave_) return;
  // Before the recordings are counted: one that begins does so before its order is passed.
  const bool has_end = has_read_end();
  append_queued();
  std::uint64_t slowest = UINT64_MAX;
  for (const int rank : host(own_).ranks) {
    const auto number = static_cast<std::uint32_t>(rank);
    // First where it is, then what it has announced on the way there: rank 0 relies on it.
    const std::uint64_t position = schedule_.position(rank);
    announcements_[number].consume(
        [&](std::string_view bytes) { append(0, {NewsType::kAnnounce, number, 0, bytes}); });
    if (position != told_[number].position) {
      append(0, {NewsType::kPosition, number, position, {}});
    }
    const std::uint64_t blocked_on = arena_.doorbell(rank).blocked_on.load();
    if (blocked_on != told_[number].blocked_on) {
      append(0, {NewsType::kBlockedOn, number, blocked_on, {}});
    }
    told_[number] = {blocked_on, position};
    slowest = std::min(slowest, position);
  }
  told_position_ = slowest;
  const auto recording = static_cast<std::uint64_t>(std::max(0, arena_.recording().load()));
  if (recording != told_recording_) append(0, {NewsType::kRecording, 0, recording, {}});
  told_recording_ = recording;
  const bool failed = arena_.recording_failed().load() != 0;
  if (failed && !told_failed_) append(0, {NewsType::kRecordingFailed, 0, 0, {}});
  told_failed_ = failed;
  if (leave_now_ || (has_end && recording == 0)) {
    append(0, {NewsType::kLeave, 0, 0, {}});
    told_leave_ = true;
  }
}

void Bridge::collect_from_hub() {
  // First what follows from the schedule, then the schedule, then what was released before it was
  // published: all of that is sent the other way round.
  const auto states = states_of(arena_);
  const std::uint64_t end = schedule_.written();
  append_queued();
  std::string record;
  while (sent_schedule_ != end) {
    std::uint64_t next = 0;
    HVD_CHECK(schedule_.look(sent_schedule_, record, next));
    for (int number = 1; number < leaders_->size(); ++number) {
      append(number, {NewsType::kSchedule, 0, 0, record});
    }
    sent_schedule_ = next;
  }
  const bool failed = arena_.recording_failed().load() != 0;
  for (int number = 1; number < leaders_->size(); ++number) {
    for (std::uint32_t state = 0; state < kStates; ++state) {
      if (states[state] == host(number).told[state]) continue;
      host(number).told[state] = states[state];
      append(number, {NewsType::kState, state, states[state], {}});
    }
    if (failed && !told_failed_) append(number, {NewsType::kRecordingFailed, 0, 0, {}});
  }
  told_failed_ = failed;
}

/// Whether anything was sent. What fails to be is the receiving thread's business: it learns why.
bool Bridge::flush() {
  bool sent_any = false;
  unsent_ = false;
  for (int number = 0; number < leaders_->size(); ++number) {
    std::string& out = host(number).out;
    std::size_t sent = 0;
    while (sent < out.size()) {
      const ssize_t bytes = ::send(leaders_->peer(number).data.get(), out.data() + sent,
                                   out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0 && errno == EAGAIN) break;
      if (bytes < 0) sent = out.size();
      if (bytes > 0) sent += static_cast<std::size_t>(bytes);
    }
    sent_any |= sent > 0;
    out.erase(0, sent);
    unsent_ |= !out.empty();
  }
  return sent_any;
}

/// Whether all ranks of this host have read the end of the job.
bool Bridge::has_read_end() const {
  const std::uint64_t end = arena_.end_position().load();
  return end != 0 && std::all_of(session_.local.begin(), session_.local.end(),
                                 [&](int rank) { return schedule_.passed(rank, end); });
}

/// Nothing more is to be sent, ever.
bool Bridge::is_settled() const { return !unsent_ && (is_hub() ? all_left_.load() : told_leave_); }

// ---- the receiving thread -----------------------------------------------------------------------

void Bridge::receive_main() {
  try {
    receive_all();
  } catch (const wire::DecodeError& problem) {
    leaders_->abort("rank " + std::to_string(session_.leader) +
                    " was sent what this version of hvdtune does not understand: " +
                    problem.what() + ". The job cannot go on.");
  } catch (const Error&) {  // the mesh has been aborted
  }
  // Those who have read the end do not need the others any more.
  if (leaders_->aborted() && !has_read_end()) arena_.abort(leaders_->abort_status().text);
  all_left_ = true;
  leave_now_ = true;
  wake();
}

void Bridge::receive_all() {
  while (!stopping_ && !has_left_) {
    std::vector<pollfd> entries{{wakeup_.get(), POLLIN, 0}, {leaders_->attention(), POLLIN, 0}};
    std::vector<int> numbers;
    for (int number = 0; number < leaders_->size(); ++number) {
      if (number != own_ && !host(number).left && (is_hub() || number == 0)) {
        numbers.push_back(number);
      }
    }
    if (numbers.empty()) return;
    for (const int number : numbers) {
      // While there is no room for what has come, nothing is read.
      if (!backlogged_) entries.push_back({leaders_->peer(number).data.get(), POLLIN, 0});
    }
    const int ready =
        poll(entries.data(), entries.size(), tcp::milliseconds_until(next_turn(monotonic_now())));
    // Local ranks may have read what has come; nothing rings when they do.
    if (ready == 0 && !is_hub()) wake();
    for (std::size_t i = 2; i < entries.size(); ++i) {
      if (entries[i].revents != 0) receive_from(numbers[i - 2]);
    }
    // Behind the data: what a host has said before it went.
    if (entries[1].revents != 0) leaders_->look();
    push_backlog();
    ring_readers();
  }
}

Nanos Bridge::next_turn(Nanos now) {
  if (backlogged_) return now + kRetryFullRing;
  if (is_hub() || told_position_ >= schedule_.written()) return kForever;
  receive_pause_ = longer(receive_pause_);
  return now + receive_pause_;
}

void Bridge::receive_from(int number) {
  const ssize_t bytes =
      recv(leaders_->peer(number).data.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (bytes <= 0) return lost(number, bytes == 0 ? 0 : errno);
  host(number).received.append(buffer_.data(), static_cast<std::size_t>(bytes));
  take_received(number);
}

void Bridge::take_received(int number) {
  std::string& received = host(number).received;
  std::size_t at = 0;
  News news;
  while (wire::take_news(received, at, news)) take(number, news);
  received.erase(0, at);
}

/// The connection has ended: it may, once the job has.
void Bridge::lost(int number, int error) {
  if (host(number).left) return;
  const bool over = is_hub() ? arena_.end_position().load() != 0 : has_read_end();
  if (over && leaders_->await_goodbye(number, monotonic_now() + kReasonTime)) {
    // Its last words may have been lost with the connection.
    arena_.recording().fetch_sub(host(number).recording);
    host(number).recording = 0;
    host(number).left = true;
    return;
  }
  leaders_->lost(number, error);
}

void Bridge::take(int number, const News& news) {
  switch (news.type) {
    case NewsType::kRecordingFailed:
      arena_.recording_failed().store(1);
      return;
    case NewsType::kMessage:
      check_rank(is_hub() ? number : own_, news.number);
      return on_message_(static_cast<int>(news.number), news.bytes);
    default:
      return is_hub() ? take_at_hub(number, news) : take_from_hub(news);
  }
}

void Bridge::check_rank(int number, std::uint32_t rank) const {
  const std::vector<int>& ranks = hosts_[static_cast<std::size_t>(number)].ranks;
  if (std::find(ranks.begin(), ranks.end(), static_cast<int>(rank)) == ranks.end()) {
    throw wire::DecodeError("a rank of another host");
  }
}

void Bridge::take_at_hub(int number, const News& news) {
  Host& from = host(number);
  const bool of_rank = news.type == NewsType::kAnnounce || news.type == NewsType::kBlockedOn ||
                       news.type == NewsType::kPosition;
  if (of_rank) check_rank(number, news.number);
  const int rank = static_cast<int>(news.number);
  switch (news.type) {
    case NewsType::kAnnounce: {
      MessageRing& ring = announcements_[news.number];
      if (news.bytes.size() > ring.max_record()) throw wire::DecodeError("too long a message");
      std::deque<std::string>& backlog = backlog_[news.number];
      if (!backlog.empty() || !ring.push(news.bytes)) backlog.emplace_back(news.bytes);
      backlogged_ |= !backlog.empty();
      heard_ = true;
      return;
    }
    case NewsType::kBlockedOn:
      arena_.doorbell(rank).blocked_on.store(news.value);
      heard_ |= news.value != 0 && arena_.collecting().load() != 0;
      return;
    case NewsType::kPosition:
      positions_[news.number] = news.value;
      // Not before what it has announced on the way there.
      if (backlog_[news.number].empty()) schedule_.advance(rank, news.value);
      return;
    case NewsType::kRecording: {
      const auto count = static_cast<std::int32_t>(news.value);
      arena_.recording().fetch_add(count - from.recording);
      from.recording = count;
      return;
    }
    case NewsType::kLeave:
      arena_.recording().fetch_sub(from.recording);
      from.recording = 0;
      from.left = true;
      return;
    default:
      throw wire::DecodeError("a message for another host than rank 0's");
  }
}

void Bridge::take_from_hub(const News& news) {
  switch (news.type) {
    case NewsType::kSchedule:
      if (news.bytes.size() > schedule_.max_record() || !schedule_.push(news.bytes)) {
        throw wire::DecodeError("more of the schedule than there is room for");
      }
      heard_ = true;
      receive_pause_ = 0;
      return;
    case NewsType::kState:
      return set_state(arena_, news.number, news.value);
    case NewsType::kReleaseSlot:
      if (news.number >= kMaxSlots) throw wire::DecodeError("an unknown slot");
      return arena_.slot_round(news.number).reset();
    case NewsType::kReleaseSet:
      if (news.number >= kMaxProcessSets) throw wire::DecodeError("an unknown process set");
      return arena_.reset_cells(static_cast<int>(news.number));
    default:
      throw wire::DecodeError("a message for rank 0's host");
  }
}

void Bridge::push_backlog() {
  if (!backlogged_) return;
  backlogged_ = false;
  for (std::size_t rank = 0; rank < backlog_.size(); ++rank) {
    std::deque<std::string>& backlog = backlog_[rank];
    while (!backlog.empty() && announcements_[rank].push(backlog.front())) {
      backlog.pop_front();
      heard_ = true;
      if (backlog.empty()) schedule_.advance(static_cast<int>(rank), positions_[rank]);
    }
    backlogged_ |= !backlog.empty();
  }
}

/// Those for whom something has come.
void Bridge::ring_readers() {
  if (!heard_) return;
  heard_ = false;
  if (!is_hub()) {
    for (const int rank : session_.local) arena_.doorbell(rank).ring(Urgency::kNormal);
    return;
  }
  bool urgent = backlogged_;
  for (int rank = 0; rank < arena_.ranks(); ++rank) {
    urgent |= arena_.doorbell(rank).blocked_on.load() != 0;
  }
  arena_.doorbell(0).ring(urgent ? Urgency::kUrgent : Urgency::kNormal);
}

}  // namespace hvdtune
