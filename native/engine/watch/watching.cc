// What the engine tells others about the job: who is late, whether rank 0 is still there, what
// somebody asks from outside. Nothing here has a part in any operation.
#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/log.h"
#include "engine/engine.h"
#include "engine/job/blocked.h"
#include "observe/stall.h"
#include "observe/trace_format.h"

namespace hvdtune {
namespace {

// How long ranks may take to tell where they are.
constexpr Nanos kStackPatience = 2 * kSecond;
// How long the coordinator may take for a look before the status does without: batches take long.
constexpr Nanos kLookPatience = 20 * kMillisecond;
constexpr Nanos kLookPoll = 100 * kMicrosecond;

}  // namespace

/// "host b, pid 4711"
std::string Engine::where(int rank) const {
  const PeerInfo& peer = session_.peers[static_cast<std::size_t>(rank)];
  return "host " + peer.hostname + ", pid " + std::to_string(peer.pid);
}

/// Empty: on another host, where nobody can tell from here.
std::string Engine::process_state(int rank) const {
  const PeerInfo& peer = session_.peers[static_cast<std::size_t>(rank)];
  return peer.here ? process_state_of(peer.pid) : std::string();
}

// ---- the coordinator's thread -------------------------------------------------------------------

/// Which ranks other than the last to announce the tensor are blocked.
StragglerWatch::Awaited Engine::who_waits_for(const TensorEntry& entry) {
  using Awaited = StragglerWatch::Awaited;
  if (entry.last_time - entry.first_time < kMicrosecond) return Awaited::kByNobody;  // all at once
  const auto host = [this](int rank) {
    return session_.across_hosts() ? session_.host_of[static_cast<std::size_t>(rank)] : 0;
  };
  Awaited found = Awaited::kByNobody;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == entry.last_rank) continue;
    if (arena_.doorbell(rank).blocked_on.load(std::memory_order_relaxed) == blocked::kNothing) {
      continue;
    }
    if (host(rank) != host(entry.last_rank)) return Awaited::kElsewhere;
    found = Awaited::kOnItsHost;
    if (!session_.across_hosts()) break;  // there is nobody elsewhere
  }
  return found;
}

/// Behind every publication: a step may have ended.
void Engine::watch_steps() {
  status_.scheduled(coordinator_->batches(), coordinator_->bytes_scheduled());
  const std::uint64_t step = coordinator_->steps().step();
  if (step == watched_step_) return;
  watched_step_ = step;
  const Nanos now = monotonic_now();
  // Shorter steps cannot count against a rank, and a look takes as long as they do.
  if (cpu_waits_ && coordinator_->steps().last().duration >= options_.straggler.least) {
    cpu_waits_->step_ended(step);
  }
  const StragglerWatch::Notices notices = stragglers_.end_step(step - 1, now);
  if (coordinator_->steps().last().end != 0) {  // when the first began is not known
    status_.step(coordinator_->steps().last(), blocked_.load(std::memory_order_relaxed),
                 stragglers_);
  }
  if (notices.rank) {
    const int rank = notices.rank->who;
    const std::string name = "rank " + std::to_string(rank);
    const std::string text =
        straggler_text(*notices.rank, name + " (" + where(rank) + ")", "the other ranks");
    tell_straggler(*notices.rank, name, text, rank, now);
  }
  if (notices.host) {
    const std::vector<int>& ranks = stragglers_.ranks_of(notices.host->who);
    const std::string name =
        "host " + session_.peers[static_cast<std::size_t>(ranks.front())].hostname;
    const std::string text = straggler_text(
        *notices.host, name + " (ranks " + ranges_text(ranks) + ")", "the other hosts");
    tell_straggler(*notices.host, name, text, -1, now);
  }
}

/// `rank`: -1 = it is a host.
void Engine::tell_straggler(const StragglerNotice& notice, const std::string& name,
                            const std::string& text, int rank, Nanos now) {
  HVD_LOG_RANK(kWarning, rank_) << text;
  if (timeline_.active()) {
    timeline_.instant("STRAGGLER " + name + (notice.begins ? " is late" : " is no longer late"),
                      now);
  }
  mark(capture::MarkKind::kStraggler, rank, text);
}

// ---- the watch's thread -------------------------------------------------------------------------

void Engine::start_watch() {
  // Of ranks on other hosts nobody can tell whether they wait for a CPU.
  if (is_coordinator() && arena_.oversubscribed() && options_.straggler.share > 0 &&
      !session_.across_hosts()) {
    std::vector<int> pids;
    for (const PeerInfo& peer : session_.peers) pids.push_back(peer.pid);
    cpu_waits_.emplace(std::move(pids));
    // Where ranks take turns, one may be the last for no other reason than the order of turns.
    stragglers_.set_excuse([this](int rank, Nanos late) {
      return cpu_waits_->excess(rank, watched_step_) * 2 >= late;
    });
  }
  const Nanos shift = options_.clock_shift;
  clock_.emplace(
      is_coordinator(), [this](std::string_view message) { return send_to_watch(0, message); },
      [shift] { return monotonic_now() + shift; });
  stacks_.emplace(rank_, size_, [this](int rank, std::string_view message) {
    return send_to_watch(rank, message);
  });
  LivenessWatch::Events events;
  events.on_death = [this](int rank) { on_peer_death(rank); };
  events.on_message = [this](int rank, std::string_view message) { hear_for_watch(rank, message); };
  events.on_turn = [this](Nanos now) { return watch_turn(now); };
  liveness_.emplace(session_, rank_, std::move(events));
  liveness_->start();
}

/// To rank 0 from another one, or from rank 0. Any thread.
bool Engine::send_to_watch(int rank, std::string_view message) {
  if (is_coordinator()) {
    return session_.is_here(rank) ? liveness_->send(rank, message) : bridge_->send(rank, message);
  }
  // On another host than rank 0's, by way of the leader.
  return bridge_ ? bridge_->send(rank_, message) : liveness_->send(session_.leader, message);
}

/// What comes from a rank of this host: for this one, or, to its leader, for rank 0.
void Engine::hear_for_watch(int rank, std::string_view message) {
  if (bridge_ && !is_coordinator()) {
    bridge_->send(rank, message);
  } else {
    take_watch_message(rank, message);
  }
}

/// `from`: on other ranks, all comes from rank 0.
void Engine::take_watch_message(int from, std::string_view message) {
  const int rank = is_coordinator() ? from : 0;
  if (stacks_->receive(rank, message)) return;
  clock_->receive(message,
                  [this, rank](std::string_view reply) { return send_to_watch(rank, reply); });
}

Nanos Engine::watch_turn(Nanos now) {
  const Nanos next = std::min(clock_->turn(now), check_coordinator(now));
  record_clock();
  return next;
}

/// What is known of the clock goes into the recording.
void Engine::record_clock() {
  if (!recorder_.active()) return;
  for (const ClockReading& reading : clock_->readings(recorded_readings_)) {
    recorder_.capture().clock(reading.local, reading.offset, reading.bound);
    ++recorded_readings_;
  }
}

/// Rank 0 looks for stalls, twice a warning period; that it does not run, or not get there, only
/// the others can see. One of them, of those that wait for something, says so.
Nanos Engine::check_coordinator(Nanos now) {
  const StallOptions& limits = options_.stall;
  if (is_coordinator() || over_ || !limits.enabled || limits.warning <= 0) return kForever;
  if (now < next_silence_check_) return next_silence_check_;
  next_silence_check_ = now + limits.warning / 2;
  const std::uint32_t checks = arena_.stall_checks().load(std::memory_order_relaxed);
  std::vector<std::string> names;
  {
    const std::lock_guard lock(table_mutex_);
    for (const OperationPtr& operation : table_.pending()) {
      names.push_back(operation->request.name);
    }
  }
  if (names.empty() || checks != seen_checks_ || silent_since_ == 0) {
    auto mine = static_cast<std::uint32_t>(rank_ + 1);
    arena_.silence_reporter().compare_exchange_strong(mine, 0);
    seen_checks_ = checks;
    silent_since_ = names.empty() ? 0 : now;
    silence_reported_ = 0;
    return next_silence_check_;
  }
  // A look that it was about to take may have come late, too.
  if (now - silent_since_ < limits.warning + limits.warning / 2) return next_silence_check_;
  if (silence_reported_ != 0 && now - silence_reported_ < limits.warning) {
    return next_silence_check_;
  }
  std::uint32_t reporter = 0;
  arena_.silence_reporter().compare_exchange_strong(reporter,
                                                    static_cast<std::uint32_t>(rank_ + 1));
  if (reporter != 0 && reporter != static_cast<std::uint32_t>(rank_ + 1)) {
    return next_silence_check_;
  }
  report_silence(std::move(names), now - silent_since_);
  silence_reported_ = now;
  return next_silence_check_;
}

void Engine::report_silence(std::vector<std::string> names, Nanos waited) {
  RankState state;
  state.rank = 0;
  state.host = session_.peers[0].hostname;
  state.pid = session_.peers[0].pid;
  state.process_state = process_state(0);
  const StallOptions& limits = options_.stall;
  const bool ends =
      limits.shutdown >= limits.warning && limits.shutdown > 0 && waited >= limits.shutdown;
  const std::string report = silence_report(rank_, std::move(names), waited, state, ends);
  if (!ends) {
    HVD_LOG_RANK(kWarning, rank_) << report;
    return;
  }
  HVD_LOG_RANK(kError, rank_) << report;
  arena_.abort(
      "Horovod has been shut down: rank 0 did not go on for longer than "
      "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.");
}

void Engine::start_clock() {
  clock_->start();
  liveness_->wake();
}

bool Engine::stop_clock(Nanos deadline) {
  const std::size_t before = clock_->readings().size();
  clock_->stop();
  liveness_->wake();
  // When the job is over, nobody may be left to answer, and the watch may have gone.
  while (clock_->pending() && !over_ && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return clock_->readings().size() > before;
}

// ---- the control server's thread ----------------------------------------------------------------

void Engine::set_stack_source(std::function<std::string()> source) {
  stack_query_.set_source(source);
  stacks_->set_source(std::move(source));
}

/// What completes nothing wakes nobody: for the status, the coordinator is made to read it, unless
/// it is in the middle of something.
void Engine::look_now() {
  const std::uint64_t looks = looks_.load();
  // One that is under way may have read what has come since.
  const std::uint64_t enough = looks + (looks % 2 == 0 ? 2 : 3);
  doorbell_.ring(Urgency::kUrgent);
  const Nanos deadline = monotonic_now() + kLookPatience;
  while (looks_.load() < enough && !over_ && monotonic_now() < deadline) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookPoll));
  }
}

std::string Engine::status() {
  if (!is_coordinator()) return "{}";
  look_now();
  const wire::RuntimeSettings now = settings();
  std::string text = "{";
  if (!identity_.empty()) text += identity_ + ",";
  text += status_.json(monotonic_now()) + ",\"epoch\":" + std::to_string(now.epoch) +
          ",\"settings\":{\"fusion_threshold\":" + std::to_string(now.fusion_threshold) +
          ",\"cycle_time_us\":" + std::to_string(now.cycle_time / kMicrosecond) +
          ",\"chunk_size\":" + std::to_string(now.chunk_size) +
          ",\"one_shot_limit\":" + std::to_string(now.one_shot_limit) + "},\"ranks\":[";
  for (int rank = 0; rank < size_; ++rank) {
    const PeerInfo& peer = session_.peers[static_cast<std::size_t>(rank)];
    text += std::string(rank > 0 ? "," : "") + "{\"host\":\"";
    append_json_escaped(text, peer.hostname);
    text += "\",\"pid\":" + std::to_string(peer.pid) + "}";
  }
  return text + "]}";
}

void Engine::serve(const std::string& name, std::string identity,
                   std::function<std::string(std::string_view)> command) {
  if (!is_coordinator()) return;
  identity_ = std::move(identity);
  command_ = std::move(command);
  control_.emplace(name, [this](std::string_view question) { return answer(question); });
}

std::string Engine::answer(std::string_view question) {
  if (question == "status") return status();
  constexpr std::string_view kStacks = "stacks";
  if (question.starts_with(kStacks)) return stacks_text(question.substr(kStacks.size()));
  // What is no command gets no turn of the interpreter, for which training would have to wait.
  constexpr std::string_view kCommands = "timeline-";
  if (command_ && question.starts_with(kCommands)) return command_(question);
  throw Error(ErrorKind::kInvalidArgument,
              "the job does not know this question: it runs another version of hvdtune");
}

/// `which`: a rank, or nothing for all.
std::string Engine::stacks_text(std::string_view which) {
  while (which.starts_with(' ')) which.remove_prefix(1);
  std::vector<int> ranks;
  if (which.empty()) {
    for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
  } else {
    int rank = -1;
    const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), rank);
    if (error != std::errc{} || end != which.data() + which.size() || rank < 0 || rank >= size_) {
      throw Error(ErrorKind::kInvalidArgument, "there is no rank " + std::string(which) +
                                                   "; the job's are 0 to " +
                                                   std::to_string(size_ - 1));
    }
    ranks.push_back(rank);
  }
  const auto found = stacks_->ask(ranks, monotonic_now() + kStackPatience);
  std::string text;
  for (const int rank : ranks) {
    const std::string state = process_state(rank);
    text += "Rank " + std::to_string(rank) + ": " + where(rank) +
            (state.empty() ? "" : ", process " + state) + "\n";
    const auto stack = found.find(rank);
    if (stack == found.end()) {
      text +=
          "no Python stack: the process has not answered within 2 s; it is stopped, or native "
          "code holds the interpreter's lock\n";
    } else {
      text += stack->second;
      if (!text.ends_with('\n')) text += '\n';
    }
  }
  return text;
}

}  // namespace hvdtune
