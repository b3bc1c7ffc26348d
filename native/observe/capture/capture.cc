#include "observe/capture/capture.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/cpu/cpu_wait.h"
#include "base/log.h"

namespace hvdtune::capture {
namespace {

/// The most texts that are remembered; others are written again.
constexpr std::size_t kMaxTexts = 4096;
constexpr std::size_t kLongestRecurring = 256;
constexpr std::size_t kLongestText = 16 << 10;

/// Shortest time between two readings of CPU times, which take system calls, even if steps are
/// shorter.
constexpr Nanos kCpuPeriod = 10 * kMillisecond;
/// Names of its counters.
constexpr std::string_view kCpusUsed = "CPUs in use";
constexpr std::string_view kCpusCommunicating = "CPUs in use for batches";
constexpr std::string_view kCpusWaitedFor = "CPUs waited for";

/// See Capture::waited_while_blocked.
thread_local Nanos waited_blocked = 0;

std::string identity_of(const Options& options, Nanos now) {
  return options.identity + ",\"format\":" + std::to_string(kFormat) +
         ",\"started_wall_us\":" + std::to_string(wall_clock_now() / kMicrosecond) +
         ",\"started_ns\":" + std::to_string(now);
}

}  // namespace

Capture::Capture(std::size_t bytes, Ended ended) : bytes_(bytes), ended_(std::move(ended)) {}

Capture::~Capture() {
  end("the engine was closed");
  join();
}

std::string Capture::start(const Options& options) {
  end("another timeline was started");
  const std::size_t next = prepare(options);
  Buffers& buffers = *files_[next].buffers;
  std::uint32_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = ++generation_;
    next_name_ = 0;
    owner_ = getpid();
    window_ = options.window;
    buffers_.store(&buffers, std::memory_order_release);
    open_.store(true, std::memory_order_release);  // the writer may end it at once
  }
  auto writer = std::make_shared<Writer>(
      buffers, options.rank,
      [this, generation](const std::string& error) { on_ended(generation, error); });
  const Nanos now = monotonic_now();
  std::string error =
      writer->start(options.path, identity_of(options, now), options.file_limit, options.claimed);
  const std::lock_guard lock(mutex_);
  if (!error.empty()) {
    open_.store(false, std::memory_order_relaxed);
    return error;
  }
  files_[next].writer = std::move(writer);
  current_ = next;
  awaits_window_ = window_.first > steps() + 1;
  if (open() && !awaits_window_) begin(now);
  return {};
}

/// Prepares memory for a new file that nobody else uses; returns its index in files_.
std::size_t Capture::prepare(const Options& options) {
  std::array<std::shared_ptr<Writer>, 2> writers;
  std::size_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < writers.size(); ++i) writers[i] = files_[i].writer;
    next = current_;
  }
  if (writers[next] && writers[next]->running()) next = 1 - next;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (writers[i] && (i == next || writers[i]->path() == options.path)) writers[i]->join();
  }
  std::unique_ptr<Buffers>& buffers = files_[next].buffers;
  if (!buffers) buffers = std::make_unique<Buffers>(bytes_);
  buffers->forget_everything(options.rank);
  return next;
}

void Buffers::forget_everything(int of_rank) {
  const auto ignore = [](const auto*, std::size_t) {};
  PackedTensors old;
  while (tensors.take(1, SIZE_MAX, old)) old.clear();
  while (batches.take(SIZE_MAX, ignore)) {
  }
  while (ready.take(SIZE_MAX, ignore)) {
  }
  for (Wait wait; waits.take(wait);) {
  }
  for (Mark mark; marks.take(mark);) {
  }
  for (Counter counter; counters.take(counter);) {
  }
  for (auto& count : dropped) count.store(0, std::memory_order_relaxed);
  const std::lock_guard lock(mutex);
  pending = {};
  rank = of_rank;
  texts.clear();
  next_text = 0;
}

bool Buffers::half_full() {
  const auto beyond = [](const auto& ring) { return ring.available() > ring.capacity() / 2; };
  if (beyond(batches) || beyond(waits) || beyond(marks) || beyond(ready) || beyond(counters)) {
    return true;
  }
  const std::lock_guard lock(mutex);
  const std::size_t most =
      std::max({pending.names.size(), pending.texts.size(), pending.events.size()});
  return most > text_limit / 2;
}

/// The caller holds mutex_.
void Capture::begin(Nanos now) {
  active_.store(true);
  Buffers& all = *files_[current_].buffers;
  put_shared(all, all.marks, {now, 1, MarkKind::kWindow, kNone}, Stream::kMarks);
  if (!settings_.empty()) {
    const Mark in_force{now, static_cast<std::int64_t>(epoch_), MarkKind::kSettings,
                        text_id(all, settings_)};
    put_shared(all, all.marks, in_force, Stream::kMarks);
  }
  last_cpu_ = last_step_ == now ? cpu_times(now) : CpuTimes{};
  // The first recorded step starts here.
  if (last_step_ != 0) {
    put_shared(all, all.marks, {last_step_, steps(), MarkKind::kStep, kNone}, Stream::kMarks);
  }
}

bool Capture::end(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!open()) return true;
  const bool began = !awaits_window_;
  finish(reason);
  return began;
}

/// The caller holds mutex_.
void Capture::finish(const std::string& reason) {
  if (active()) mark(MarkKind::kWindow, 0);
  active_.store(false, std::memory_order_relaxed);
  open_.store(false, std::memory_order_relaxed);
  awaits_window_ = false;
  if (owner_ == getpid()) return files_[current_].writer->finish(reason);
  // A forked child: the parent writes the files, and this process has no writer threads.
  for (File& file : files_) static_cast<void>(new std::shared_ptr<Writer>(std::move(file.writer)));
}

void Capture::join() {
  std::array<std::shared_ptr<Writer>, 2> writers;
  {
    const std::lock_guard lock(mutex_);
    if (open()) return;
    for (std::size_t i = 0; i < writers.size(); ++i) writers[i] = files_[i].writer;
  }
  for (const auto& writer : writers) {
    if (writer) writer->join();
  }
}

/// On the writer's thread.
void Capture::on_ended(std::uint32_t generation, const std::string& error) {
  bool recorded = false;
  if (!error.empty()) {
    const std::lock_guard lock(mutex_);
    recorded = generation == generation_ && open();  // false for a file that had ended already
    if (recorded) {
      active_.store(false);
      open_.store(false);
      awaits_window_ = false;
    }
  }
  if (ended_) ended_(error, recorded);
}

void Capture::wake() {
  const std::lock_guard lock(mutex_);
  if (files_[current_].writer) files_[current_].writer->wake();
}

// ---- records ------------------------------------------------------------------------------------

std::uint32_t Capture::name(std::span<const Named> tensors) {
  Buffers& buffers = *buffers_.load(std::memory_order_acquire);
  const std::lock_guard lock(buffers.mutex);
  std::string& out = buffers.pending.names;
  if (out.size() > buffers.text_limit) return kNone;
  const std::uint32_t first = next_name_;
  for (const Named& tensor : tensors) {
    if (!out.empty()) out += ',';
    out += '[';
    out += std::to_string(next_name_++);
    out += ',';
    append_json_string(out, tensor.name);
    out += ',';
    out += std::to_string(tensor.process_set);
    out += ",\"";
    out += op_kind_lower_name(tensor.kind);
    out += "\",\"";
    out += dtype_name(tensor.dtype);
    out += "\",";
    out += std::to_string(tensor.bytes);
    out += ']';
  }
  return first;
}

bool Capture::process_set(std::uint32_t set, std::uint64_t batch, std::span<const int> ranks) {
  Buffers* all = buffers();
  if (all == nullptr) return false;
  const std::lock_guard lock(all->mutex);
  std::string& out = all->pending.events;
  if (out.size() > all->text_limit) return false;
  append_event(out, "hvdtune_set", all->rank);
  out += "\"process_set\":" + std::to_string(set) + ",\"batch\":" + std::to_string(batch) +
         ",\"ranks\":[";
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    if (member > 0) out += ',';
    out += std::to_string(ranks[member]);
  }
  out += "]}}";
  return true;
}

void Capture::ready(const Ready& record) {
  if (Buffers* all = buffers()) put_one(*all, all->ready, record, Stream::kReady);
}

void Capture::wait(const Wait& record) {
  if (Buffers* all = buffers()) put_shared(*all, all->waits, record, Stream::kWaits);
}

void Capture::mark(MarkKind kind, std::int64_t value, std::string_view text) {
  Buffers* all = buffers();
  if (all == nullptr) return;
  const Nanos now = monotonic_now();
  const Mark made{now, value, kind, text.empty() ? kNone : text_id(*all, text)};
  put_shared(*all, all->marks, made, Stream::kMarks);
}

void Capture::counter(std::string_view name, double value) {
  Buffers* all = buffers();
  if (all == nullptr) return;
  const Counter reading{monotonic_now(), value, text_id(*all, name), 0};
  put_shared(*all, all->counters, reading, Stream::kCounters);
}

void Capture::settings(std::uint64_t epoch, std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    settings_ = text;
  }
  mark(MarkKind::kSettings, static_cast<std::int64_t>(epoch), text);
}

void Capture::clock(Nanos local, Nanos offset, Nanos bound) {
  if (!open()) return;
  Buffers& buffers = *buffers_.load(std::memory_order_acquire);
  const std::lock_guard lock(buffers.mutex);
  std::string& out = buffers.pending.events;
  if (out.size() > buffers.text_limit) return;
  append_event(out, "hvdtune_clock", buffers.rank);
  out += "\"local_ns\":" + std::to_string(local) + ",\"offset_ns\":" + std::to_string(offset) +
         ",\"bound_ns\":" + std::to_string(bound) + "}}";
}

std::uint32_t Capture::text_id(Buffers& buffers, std::string_view text) {
  const std::string key(text.substr(0, kLongestText));
  const bool may_recur = key.size() <= kLongestRecurring;
  const std::lock_guard lock(buffers.mutex);
  if (may_recur) {
    const auto found = buffers.texts.find(key);
    if (found != buffers.texts.end()) return found->second;
    if (buffers.texts.size() >= kMaxTexts) buffers.texts.clear();
  }
  std::string& out = buffers.pending.texts;
  if (out.size() > buffers.text_limit) return kNone;
  const std::uint32_t id = buffers.next_text++;
  if (!out.empty()) out += ',';
  out += '[';
  out += std::to_string(id);
  out += ',';
  append_json_string(out, key);
  out += ']';
  if (may_recur) buffers.texts.emplace(key, id);
  return id;
}

void Capture::waited_while_blocked(Nanos cpu_wait) { waited_blocked += cpu_wait; }

Capture::CpuTimes Capture::cpu_times(Nanos now) const {
  std::optional<Nanos> waited = cpu_wait_of_this_thread();
  if (waited) *waited -= waited_blocked;
  return {now, process_cpu_now(), communication_cpu_.load(std::memory_order_relaxed), waited,
          std::this_thread::get_id()};
}

/// Records the use of CPUs since the last reading. The caller holds mutex_.
void Capture::put_cpus_used(Buffers& all, Nanos now) {
  const bool known = last_cpu_.process != 0;
  if (known && now - last_cpu_.at < kCpuPeriod) return;
  const CpuTimes before = std::exchange(last_cpu_, cpu_times(now));
  if (!known) return;
  const auto put = [&](std::string_view name, Nanos cpu) {
    const double cpus = static_cast<double>(cpu) / static_cast<double>(now - before.at);
    put_shared(all, all.counters, {now, cpus, text_id(all, name), 0}, Stream::kCounters);
  };
  put(kCpusUsed, last_cpu_.process - before.process);
  put(kCpusCommunicating, last_cpu_.communication - before.communication);
  if (before.waited && last_cpu_.waited && before.thread == last_cpu_.thread) {
    put(kCpusWaitedFor, *last_cpu_.waited - *before.waited);
  }
}

bool Capture::step() {
  const std::lock_guard lock(mutex_);
  const Nanos now = monotonic_now();
  const std::int64_t ended = steps() + 1;
  steps_.store(ended, std::memory_order_relaxed);
  last_step_ = now;
  if (active()) {
    Buffers& all = *files_[current_].buffers;
    put_shared(all, all.marks, {now, ended, MarkKind::kStep, kNone}, Stream::kMarks);
    put_cpus_used(all, now);
    if (window_.end == 0 || ended + 1 < window_.end) return false;
    finish("the last of the steps was recorded");
    return true;
  }
  if (!open() || !awaits_window_ || ended + 1 < window_.first) return false;
  awaits_window_ = false;
  begin(now);
  return true;
}

}  // namespace hvdtune::capture
