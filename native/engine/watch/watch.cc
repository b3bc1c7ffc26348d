#include "engine/watch/watch.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace hvdtune {

Watch::Watch(Job& job, Submissions& submissions, Recorder& recorder, StallReports& reports,
             int fanout, Nanos clock_shift)
    : job_(job),
      submissions_(submissions),
      recorder_(recorder),
      reports_(reports),
      schedule_(job.arena.schedule()),
      stack_query_([&job] { job.doorbell.wake_all(); }),
      stacks_(job.rank, job.size,
              [this](int rank, std::string_view message) { return send(rank, message); }),
      clock_(
          job.is_coordinator(), [this](std::string_view message) { return send(0, message); },
          [clock_shift] { return monotonic_now() + clock_shift; }),
      liveness_(job.session, job.rank,
                {.on_death = [this](int rank) { on_peer_death(rank); },
                 .on_message = [this](int rank, std::string_view message) { hear(rank, message); },
                 .on_turn = [this](Nanos now) { return turn(now); }}) {
  if (!job.session.leaders) return;
  job.bridge =
      &bridge_.emplace(job.session, job.rank, fanout, [this](int rank, std::string_view message) {
        if (job_.is_coordinator() || rank == job_.rank) {
          return take(rank, message);
        }
        liveness_.send(rank, message);
      });
}

void Watch::start() {
  liveness_.start();
  if (bridge_) bridge_->start();
}

void Watch::stop() {
  stack_query_.stop();
  stacks_.stop();
  liveness_.stop();
  record_clock();  // readings that the watch has not recorded yet
}

void Watch::disconnect() {
  liveness_.stop();  // it sends through the bridge
  job_.bridge = nullptr;
  bridge_.reset();
}

void Watch::set_stack_source(std::function<std::string()> source) {
  stack_query_.set_source(source);
  stacks_.set_source(std::move(source));
}

// ---- messages -----------------------------------------------------------------------------------

/// Sends to rank 0 from another rank, or from rank 0 to another. Any thread.
bool Watch::send(int rank, std::string_view message) {
  if (job_.is_coordinator()) {
    return job_.session.is_here(rank) ? liveness_.send(rank, message)
                                      : bridge_->send(rank, message);
  }
  // On another host than rank 0's, through the leader.
  return bridge_ ? bridge_->send(job_.rank, message) : liveness_.send(job_.session.leader, message);
}

/// A message from a rank of this host: for this rank, or, if this is a leader, for rank 0.
void Watch::hear(int rank, std::string_view message) {
  if (bridge_ && !job_.is_coordinator()) {
    bridge_->send(rank, message);
  } else {
    take(rank, message);
  }
}

/// `from`: on ranks other than 0, always rank 0.
void Watch::take(int from, std::string_view message) {
  const int rank = job_.is_coordinator() ? from : 0;
  if (stacks_.receive(rank, message)) return;
  clock_.receive(message, [this, rank](std::string_view reply) { return send(rank, reply); });
}

// ---- the watch's thread -------------------------------------------------------------------------

void Watch::on_peer_death(int rank) {
  // A rank may leave once it has read the end of the schedule. Before that, others may need it.
  const std::uint64_t end = job_.arena.end_position().load();
  if (end != 0 && schedule_.passed(rank, end)) return;
  const PeerInfo& peer = job_.session.peers[static_cast<std::size_t>(rank)];
  job_.arena.abort("rank " + std::to_string(rank) + " (pid " + std::to_string(peer.pid) + " on " +
                   peer.hostname +
                   ") died: its process ended without shutting down. The job cannot go on.");
}

Nanos Watch::turn(Nanos now) {
  const Nanos next = std::min(clock_.turn(now), check_coordinator(now));
  record_clock();
  return next;
}

/// Writes new clock readings into the recording.
void Watch::record_clock() {
  if (!recorder_.active()) return;
  for (const ClockReading& reading : clock_.readings(recorded_readings_)) {
    recorder_.capture().clock(reading.local, reading.offset, reading.bound);
    ++recorded_readings_;
  }
}

/// Rank 0 checks for stalls twice per warning period. If it does not run, or is stuck before the
/// check, only the others can see that. One of the ranks that wait for an operation reports it.
Nanos Watch::check_coordinator(Nanos now) {
  const StallOptions& limits = reports_.limits();
  if (job_.is_coordinator() || submissions_.over() || limits.patience() == 0) return kForever;
  if (now < next_silence_check_) return next_silence_check_;
  next_silence_check_ = now + limits.warning / 2;
  const std::uint32_t checks = job_.arena.stall_checks().load(std::memory_order_relaxed);
  std::vector<std::string> names = submissions_.pending_names();
  if (names.empty() || checks != seen_checks_ || silent_since_ == 0) {
    auto mine = static_cast<std::uint32_t>(job_.rank + 1);
    job_.arena.silence_reporter().compare_exchange_strong(mine, 0);
    seen_checks_ = checks;
    silent_since_ = names.empty() ? 0 : now;
    silence_reported_ = 0;
    return next_silence_check_;
  }
  // A check that was due may just be late.
  if (now - silent_since_ < limits.warning + limits.warning / 2) return next_silence_check_;
  if (silence_reported_ != 0 && now - silence_reported_ < limits.warning) {
    return next_silence_check_;
  }
  std::uint32_t reporter = 0;
  job_.arena.silence_reporter().compare_exchange_strong(reporter,
                                                        static_cast<std::uint32_t>(job_.rank + 1));
  if (reporter != 0 && reporter != static_cast<std::uint32_t>(job_.rank + 1)) {
    return next_silence_check_;
  }
  reports_.silence(std::move(names), now - silent_since_);
  silence_reported_ = now;
  return next_silence_check_;
}

// ---- clocks -------------------------------------------------------------------------------------

void Watch::start_clock() {
  clock_.start();
  liveness_.wake();
}

bool Watch::stop_clock(Nanos deadline) {
  const std::size_t before = clock_.readings().size();
  clock_.stop();
  liveness_.wake();
  // When the job is over, there may be nobody left to answer, and the watch may have ended.
  while (clock_.pending() && !submissions_.over() && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return clock_.readings().size() > before;
}

}  // namespace hvdtune
