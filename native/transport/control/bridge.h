#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/control/host_tree.h"
#include "transport/meeting/host_session.h"
#include "wire/bridge_news.h"

namespace hvdtune {

/// Keeps the arenas of a job's hosts the same, so that the engine on each host reads and writes
/// only its own host's arena. Each host's leader has a bridge. The bridges form a tree whose root
/// is on rank 0's host (HostTree): they send the announcements of local ranks to the root, and the
/// schedule and the coordinator's state words from the root to all hosts. A bridge sends everything
/// that it has collected since it last sent, from all ranks, together; a bridge in the middle of
/// the tree passes on what it receives unchanged and in order.
///
/// Positions in the schedule mean the same on all hosts: they depend only on the records, which are
/// the same. Rank 0's arena knows how far the ranks of other hosts have read; each host always has
/// room for the next record, since rank 0 leaves room for the slowest reader.
///
/// If the job is aborted on one host, the leaders' mesh aborts it on all; the mesh's notices also
/// tell that a host is gone. When the job is over, a bridge ends by itself once its host's ranks,
/// and those of all hosts below it, have read the end and closed their recordings. If stop() ends a
/// bridge before that, it passes nothing on any more: rank 0's arena then does not learn of
/// recordings that are closed later below it.
///
/// Two threads: one sleeps on the arena's bridge_bell() and sends, one sleeps on the connections
/// and receives.
class Bridge {
 public:
  /// The receiving thread calls this for a message to the watch of a rank. `rank` is the sender on
  /// rank 0's host, and the receiver on other hosts.
  using OnMessage = std::function<void(int rank, std::string_view message)>;

  /// The bridge owns `session.leaders` from here on. `fanout`: see HostTree; the same on all hosts.
  /// Nothing happens before start().
  Bridge(HostSession& session, int rank, int fanout, OnMessage on_message);
  /// stop().
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  void start();

  /// Sends a message to the watch of a rank. On rank 0's host, `rank` is the receiver, on another
  /// host; on other hosts, `rank` is the sender, and the receiver is rank 0. Never blocks; false if
  /// the bridge has ended. Any thread.
  bool send(int rank, std::string_view message);

  /// Rank 0's host only: the other hosts clear their arenas' state of the slot, or of the process
  /// set, before they see any schedule entry that is published after this call. Any thread.
  void release_slot(std::uint32_t slot);
  void release_set(std::uint32_t set);

  /// Call it after a change in the arena that rings no bell by itself. Any thread.
  void wake() { arena_.bridge_bell().ring(Urgency::kUrgent); }

  /// Waits for the end described above, for a few seconds at most, and then stops. If the job has
  /// not ended, stops at once.
  void stop();
  /// For a forked child: closes the connections without telling the others.
  void abandon() {
    if (leaders_) leaders_->abandon();
  }

 private:
  struct Host {
    std::vector<int> ranks;
    std::atomic<bool> left{false};    ///< neither it nor any host below it needs more
    std::string received;             ///< the beginning of a message
    std::int32_t recording = 0;       ///< the last number that it has sent
    std::string passed_on;            ///< to be passed on unchanged; guarded by queue_mutex_
    std::string out;                  ///< sending thread: not sent yet
    std::vector<std::uint64_t> told;  ///< sending thread: state words, as last sent
  };
  /// State of another host's rank that rank 0's host has been told.
  struct Told {
    std::uint64_t blocked_on = 0;
    std::uint64_t position = 0;
  };
  struct Queued {
    int host;  ///< -1 = all others
    wire::NewsType type;
    std::uint32_t number;
    std::string bytes;
  };

  [[nodiscard]] bool is_hub() const { return own_ == 0; }
  Host& host(int number) { return hosts_[static_cast<std::size_t>(number)]; }
  [[nodiscard]] int host_of(std::uint32_t rank) const;
  void queue(Queued news);
  void end_of_thread();
  bool await_end(Nanos deadline);

  // The sending thread.
  void send_main();
  bool collect();
  void collect_own();
  void collect_schedule();
  void append_queued();
  void append(int host, const wire::News& news);
  bool flush();
  bool work() { return static_cast<int>(collect()) + static_cast<int>(flush()) > 0; }
  [[nodiscard]] bool has_read_end() const;
  [[nodiscard]] bool have_left(const std::vector<int>& children) const;
  [[nodiscard]] bool is_settled() const;
  void wake_receiver() const;

  // The receiving thread.
  void receive_main();
  void receive_all();
  void receive_from(int number);
  void take_received(int number);
  void lost(int number, int error);
  void take(int number, const wire::News& news);
  void take_from_below(int number, const wire::News& news);
  void take_at_hub(int number, const wire::News& news);
  void take_from_above(const wire::News& news);
  void take_message(int number, const wire::News& news);
  void pass_on(int number, const wire::News& news);
  void pass_on_more();
  void push_backlog();
  void ring_readers();
  [[nodiscard]] Nanos next_turn(Nanos now);

  HostSession& session_;
  Arena& arena_;
  const int own_;  // number of this host
  const HostTree tree_;
  const OnMessage on_message_;
  std::shared_ptr<Mesh> leaders_;
  BroadcastRing schedule_;
  std::vector<MessageRing> announcements_;  // by rank
  std::vector<Host> hosts_;

  // The sending thread's.
  std::vector<Told> told_;  // by rank; used for local ones
  std::uint64_t told_recording_ = 0;
  bool told_failed_ = false;
  bool told_leave_ = false;
  std::uint64_t sent_schedule_ = 0;  // hub: position
  bool unsent_ = false;
  Nanos send_pause_ = 0;
  std::atomic<std::uint64_t> told_position_{0};  // of the slowest local rank

  // The receiving thread's.
  // Hub: by rank, messages that found the ring full.
  std::vector<std::deque<std::string>> backlog_;
  std::vector<std::uint64_t> positions_;  // hub: by rank, as last heard
  bool backlogged_ = false;
  bool heard_ = false;      // received something for rank 0 or local ranks
  bool passed_on_ = false;  // received something for other hosts that may not be sent yet
  std::vector<char> buffer_;
  Nanos receive_pause_ = 0;
  Fd wakeup_;

  std::mutex queue_mutex_;
  std::vector<Queued> queue_;
  std::vector<Queued> taken_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leave_now_{false};
  std::atomic<bool> has_left_{false};  // this host: the sending thread has ended
  std::atomic<bool> all_left_{false};  // rank 0's: the receiving thread has
  int running_ = 0;                    // threads; guarded by over_mutex_
  std::mutex over_mutex_;
  std::condition_variable over_changed_;
  std::thread sender_;
  std::thread receiver_;
};

}  // namespace hvdtune
