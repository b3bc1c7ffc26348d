#include "transport/control/bridge.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/check.h"
#include "transport/control/bridge_states.h"
#include "transport/sockets/tcp_socket.h"
#include "wire/codec.h"

namespace hvdtune {
namespace {

using wire::News;
using wire::NewsType;

// Pause between two looks while a connection takes no more, or local ranks have not read what was
// received.
constexpr Nanos kFirstPause = kMillisecond;
constexpr Nanos kLongestPause = 100 * kMillisecond;
constexpr Nanos kRetrySend = 500 * kMicrosecond;
// How long stop() waits for others to receive and read the end of the job.
constexpr Nanos kEndPatience = 3 * kSecond;
constexpr Nanos kLeavePatience = 500 * kMillisecond;
// How long to wait for the reason why a connection ended.
constexpr Nanos kReasonTime = 2 * kSecond;
// If more bytes than this are not sent yet, the bridge collects nothing more.
constexpr std::size_t kMostUnsent = 4 << 20;
constexpr std::size_t kReadAtOnce = 256 << 10;

Nanos longer(Nanos pause) { return pause == 0 ? kFirstPause : std::min(2 * pause, kLongestPause); }

}  // namespace

Bridge::Bridge(HostSession& session, int rank, int fanout, OnMessage on_message)
    : session_(session),
      arena_(*session.arena),
      own_(session.host_of[static_cast<std::size_t>(rank)]),
      tree_(session.leaders->size(), own_, fanout),
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
  for (Host& other : hosts_) other.told.resize(kBridgeStates);
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
  if (receiver_.joinable()) receiver_.join();  // not if the system refused a second thread
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
  const auto number = static_cast<std::uint32_t>(rank);
  queue({is_hub() ? host_of(number) : 0, NewsType::kMessage, number, std::string(message)});
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
    } else if (arena_.end_position().load() != 0) {  // a rank that has read the end rings no bell
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
    collect_schedule();
  } else {
    collect_own();
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
    for (const int number : tree_.neighbours()) {
      Host& to = host(number);
      if (!to.left) to.out += to.passed_on;
      to.passed_on.clear();
    }
  }
  for (const Queued& news : taken_) {
    for (const int number : tree_.neighbours()) {
      if (news.host >= 0 && number != tree_.next_to(news.host)) continue;
      append(number, {news.type, news.number, 0, news.bytes});
    }
  }
  taken_.clear();
}

/// Collects the news of this host's ranks and from the hosts below.
void Bridge::collect_own() {
  if (told_leave_) return;
  // Read this before taking what the hosts below have sent: their last message says that they need
  // nothing more.
  const bool are_last = have_left(tree_.children());
  // Read this before counting the recordings: a recording begins before its order is passed.
  const bool has_end = has_read_end();
  const int parent = tree_.parent();
  append_queued();
  std::uint64_t slowest = UINT64_MAX;
  for (const int rank : host(own_).ranks) {
    const auto number = static_cast<std::uint32_t>(rank);
    // Send a rank's position after the announcements that it made on the way there, but read it
    // before them: rank 0 relies on this.
    const std::uint64_t position = schedule_.position(rank);
    announcements_[number].consume(
        [&](std::string_view bytes) { append(parent, {NewsType::kAnnounce, number, 0, bytes}); });
    if (position != told_[number].position) {
      append(parent, {NewsType::kPosition, number, position, {}});
    }
    const std::uint64_t blocked_on = arena_.doorbell(rank).blocked_on.load();
    if (blocked_on != told_[number].blocked_on) {
      append(parent, {NewsType::kBlockedOn, number, blocked_on, {}});
    }
    told_[number] = {blocked_on, position};
    slowest = std::min(slowest, position);
  }
  told_position_ = slowest;
  const auto number = static_cast<std::uint32_t>(own_);
  const auto recording = static_cast<std::uint64_t>(std::max(0, arena_.recording().load()));
  if (recording != told_recording_) append(parent, {NewsType::kRecording, number, recording, {}});
  told_recording_ = recording;
  const bool failed = arena_.recording_failed().load() != 0;
  for (const int to : tree_.neighbours()) {
    if (failed && !told_failed_) append(to, {NewsType::kRecordingFailed, 0, 0, {}});
  }
  told_failed_ = failed;
  if (leave_now_ || (are_last && has_end && recording == 0)) {
    append(parent, {NewsType::kLeave, number, 0, {}});
    told_leave_ = true;
  }
}

/// Rank 0's host: collects the coordinator's news.
void Bridge::collect_schedule() {
  // Read first what follows from the schedule (states), then the schedule, then the releases that
  // precede it. Send them in the reverse order.
  const auto states = bridge_states(arena_);
  const std::uint64_t end = schedule_.written();
  append_queued();
  std::string record;
  while (sent_schedule_ != end) {
    std::uint64_t next = 0;
    HVD_CHECK(schedule_.look(sent_schedule_, record, next));
    for (const int number : tree_.children()) append(number, {NewsType::kSchedule, 0, 0, record});
    sent_schedule_ = next;
  }
  const bool failed = arena_.recording_failed().load() != 0;
  for (const int number : tree_.children()) {
    for (std::uint32_t state = 0; state < kBridgeStates; ++state) {
      if (states[state] == host(number).told[state]) continue;
      host(number).told[state] = states[state];
      append(number, {NewsType::kState, state, states[state], {}});
    }
    if (failed && !told_failed_) append(number, {NewsType::kRecordingFailed, 0, 0, {}});
  }
  told_failed_ = failed;
}

/// Returns whether anything was sent. The receiving thread handles failures: it learns the reason.
bool Bridge::flush() {
  bool sent_any = false;
  unsent_ = false;
  for (const int number : tree_.neighbours()) {
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

bool Bridge::have_left(const std::vector<int>& children) const {
  return std::all_of(children.begin(), children.end(), [this](int number) {
    return hosts_[static_cast<std::size_t>(number)].left.load();
  });
}

/// Whether there is nothing left to send, now or later.
bool Bridge::is_settled() const { return !unsent_ && (is_hub() ? all_left_.load() : told_leave_); }

// ---- the receiving thread -----------------------------------------------------------------------

void Bridge::receive_main() {
  try {
    receive_all();
  } catch (const wire::DecodeError& problem) {
    leaders_->abort("rank " + std::to_string(session_.leader) +
                    " received a message that this version of hvdtune does not understand: " +
                    problem.what() + ". The job cannot go on.");
  } catch (const Error&) {  // the mesh has been aborted
  }
  // If this host's ranks have read the end, they do not need the others any more.
  if (leaders_->aborted() && !has_read_end()) arena_.abort(leaders_->abort_status().text);
  all_left_ = true;
  leave_now_ = true;
  wake();
}

void Bridge::receive_all() {
  while (!stopping_ && !has_left_) {
    std::vector<pollfd> entries{{wakeup_.get(), POLLIN, 0}, {leaders_->attention(), POLLIN, 0}};
    std::vector<int> numbers;
    for (const int number : tree_.neighbours()) {
      if (!host(number).left) numbers.push_back(number);
    }
    if (numbers.empty()) return;
    for (const int number : numbers) {
      // While there is no room for received data, read no more.
      if (!backlogged_) entries.push_back({leaders_->peer(number).data.get(), POLLIN, 0});
    }
    const int ready =
        poll(entries.data(), entries.size(), tcp::milliseconds_until(next_turn(monotonic_now())));
    // Local ranks may have read what was received; they ring no bell for that.
    if (ready == 0 && !is_hub()) wake();
    for (std::size_t i = 2; i < entries.size(); ++i) {
      if (entries[i].revents != 0) receive_from(numbers[i - 2]);
    }
    // After the data: a host may have sent a notice before it left.
    if (entries[1].revents != 0) leaders_->look();
    push_backlog();
    pass_on_more();
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

/// The connection has ended, as it may once the job has ended. The host above sends the end after
/// everything else, so this host's ranks, even slow ones, have all they need.
void Bridge::lost(int number, int error) {
  if (host(number).left) return;
  const bool over = arena_.end_position().load() != 0;
  if (!over || !leaders_->await_goodbye(number, monotonic_now() + kReasonTime)) {
    return leaders_->lost(number, error);
  }
  if (number == tree_.parent()) {
    host(number).left = true;
    return;
  }
  // The last messages of the host, and of hosts below it, may have been lost with the connection.
  for (int gone = 0; gone < leaders_->size(); ++gone) {
    if (!tree_.is_below(number, gone) || host(gone).left) continue;
    take_from_below(number, {NewsType::kLeave, static_cast<std::uint32_t>(gone), 0, {}});
  }
}

void Bridge::take(int number, const News& news) {
  switch (news.type) {
    case NewsType::kRecordingFailed:
      arena_.recording_failed().store(1);
      wake();
      return;
    case NewsType::kMessage:
      return take_message(number, news);
    default:
      return number == tree_.parent() ? take_from_above(news) : take_from_below(number, news);
  }
}

int Bridge::host_of(std::uint32_t rank) const {
  if (rank >= session_.host_of.size()) throw wire::DecodeError("an unknown rank");
  return session_.host_of[rank];
}

void Bridge::take_message(int number, const News& news) {
  const int about = host_of(news.number);
  const bool is_above = number == tree_.parent();
  const bool may_say_so = is_above ? tree_.next_to(about) != number : tree_.is_below(number, about);
  if (!may_say_so) throw wire::DecodeError("a rank of another host");
  const int to = is_above ? about : 0;
  if (to == own_) return on_message_(static_cast<int>(news.number), news.bytes);
  pass_on(tree_.next_to(to), news);
}

void Bridge::pass_on(int number, const News& news) {
  const std::lock_guard lock(queue_mutex_);
  wire::append_news(host(number).passed_on, news);
  passed_on_ = true;
}

/// Wakes the sending thread to pass messages on. If it cannot keep up with the hosts that send
/// them, this thread stops reading.
void Bridge::pass_on_more() {
  if (!passed_on_) return;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(queue_mutex_);
    for (const Host& to : hosts_) bytes += to.passed_on.size();
  }
  backlogged_ |= bytes > kMostUnsent;
  passed_on_ = bytes > 0;
  wake();
}

/// Takes news for rank 0's host about a rank or a host below this one.
void Bridge::take_from_below(int number, const News& news) {
  const bool of_host = news.type == NewsType::kRecording || news.type == NewsType::kLeave;
  const bool of_rank = news.type == NewsType::kAnnounce || news.type == NewsType::kBlockedOn ||
                       news.type == NewsType::kPosition;
  if (!of_host && !of_rank) {
    throw wire::DecodeError("a message for another host than rank 0's");
  }
  if (of_host && news.number >= hosts_.size()) throw wire::DecodeError("an unknown host");
  const int about = of_rank ? host_of(news.number) : static_cast<int>(news.number);
  if (!tree_.is_below(number, about)) throw wire::DecodeError("a rank of another host");
  if (is_hub()) {
    take_at_hub(about, news);
  } else {
    pass_on(tree_.parent(), news);
  }
  if (news.type == NewsType::kLeave) host(about).left = true;
}

void Bridge::take_at_hub(int number, const News& news) {
  Host& from = host(number);
  const int rank = static_cast<int>(news.number);
  switch (news.type) {
    case NewsType::kAnnounce: {
      MessageRing& ring = announcements_[news.number];
      if (news.bytes.size() > ring.max_record())
        throw wire::DecodeError("a message that is too long");
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
      // Only after the announcements that the rank made on the way there.
      if (backlog_[news.number].empty()) schedule_.advance(rank, news.value);
      return;
    case NewsType::kRecording: {
      const auto count = static_cast<std::int32_t>(news.value);
      arena_.recording().fetch_add(count - from.recording);
      from.recording = count;
      return;
    }
    default:  // kLeave
      arena_.recording().fetch_sub(from.recording);
      from.recording = 0;
  }
}

void Bridge::take_from_above(const News& news) {
  for (const int child : tree_.children()) {
    if (!host(child).left) pass_on(child, news);
  }
  switch (news.type) {
    case NewsType::kSchedule:
      if (news.bytes.size() > schedule_.max_record() || !schedule_.push(news.bytes)) {
        throw wire::DecodeError("more of the schedule than there is room for");
      }
      heard_ = true;
      receive_pause_ = 0;
      return;
    case NewsType::kState:
      set_bridge_state(arena_, news.number, news.value);
      // Announcements that complete nothing ring no bell, but a stall check must learn of them.
      return wake();
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

/// Rings the bells of the ranks that have received something.
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
