#include "observe/capture.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "base/log.h"

namespace hvdtune::capture {
namespace {

/// Texts told apart; beyond that they are written once more.
constexpr std::size_t kMaxTexts = 4096;
constexpr std::size_t kLongestRecurring = 256;
constexpr std::size_t kLongestText = 16 << 10;

/// Names of the counters that every step has.
constexpr std::string_view kCpusUsed = "CPUs in use";
constexpr std::string_view kCpusCommunicating = "CPUs in use for batches";

constexpr std::array<const char*, 6> kKindNames = {"allreduce", "allgather",     "broadcast",
                                                   "alltoall",  "reducescatter", "barrier"};

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
  const std::lock_guard lock(mutex_);
  if (writer_) writer_->join();
  writer_.reset();
  if (!owned_buffers_) {
    owned_buffers_ = std::make_unique<Buffers>(bytes_);
    buffers_.store(owned_buffers_.get(), std::memory_order_release);
  }
  forget_everything();
  {
    const std::lock_guard names(owned_buffers_->mutex);  // clock() may be on its way
    rank_ = options.rank;
  }
  owner_ = getpid();
  window_ = options.window;
  auto writer = std::make_unique<Writer>(*owned_buffers_, options.rank,
                                         [this](const std::string& error) { on_ended(error); });
  const Nanos now = monotonic_now();
  open_.store(true, std::memory_order_release);  // the writer may end it at once
  std::string error = writer->start(options.path, identity_of(options, now), options.file_limit);
  if (!error.empty()) {
    open_.store(false, std::memory_order_relaxed);
    return error;
  }
  writer_ = std::move(writer);
  const std::int64_t step = steps() + 1;
  awaits_window_ = window_.first > step;
  if (!awaits_window_) begin(now);
  return {};
}

/// What is left of the file before: nobody drains the buffers now.
void Capture::forget_everything() {
  ++generation_;
  next_name_ = 0;
  Buffers& buffers = *owned_buffers_;
  const auto ignore = [](const auto*, std::size_t) {};
  while (buffers.tensors.take(SIZE_MAX, ignore)) {
  }
  while (buffers.batches.take(SIZE_MAX, ignore)) {
  }
  while (buffers.ready.take(SIZE_MAX, ignore)) {
  }
  for (Wait wait; buffers.waits.take(wait);) {
  }
  for (Mark mark; buffers.marks.take(mark);) {
  }
  for (Counter counter; buffers.counters.take(counter);) {
  }
  for (auto& dropped : buffers.dropped) dropped.store(0, std::memory_order_relaxed);
  const std::lock_guard lock(buffers.mutex);
  buffers.pending = {};
  texts_.clear();
  next_text_ = 0;
}

/// The caller holds mutex_.
void Capture::begin(Nanos now) {
  active_.store(true);
  // The writer may have failed just now (on_ended): then nobody would end this.
  if (!open_.load()) active_.store(false);
  put_mark({now, 1, MarkKind::kWindow, kNone});
  if (!settings_.empty()) {
    put_mark({now, static_cast<std::int64_t>(epoch_), MarkKind::kSettings,
              text_id(*owned_buffers_, settings_)});
  }
  last_cpu_ = last_step_ == now ? cpu_times() : CpuTimes{};
  // Where the first recorded step begins.
  if (last_step_ != 0) put_mark({last_step_, steps(), MarkKind::kStep, kNone});
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
  if (active()) put_mark({monotonic_now(), 0, MarkKind::kWindow, kNone});
  active_.store(false, std::memory_order_relaxed);
  open_.store(false, std::memory_order_relaxed);
  awaits_window_ = false;
  if (owner_ == getpid()) {
    writer_->finish(reason);
  } else {
    // A forked child: the parent writes the file, and this process has no writer thread.
    static_cast<void>(writer_.release());
  }
}

void Capture::join() {
  const std::lock_guard lock(mutex_);
  if (open() || !writer_) return;
  writer_->join();
  writer_.reset();
}

/// On the writer's thread.
void Capture::on_ended(const std::string& error) {
  if (!error.empty()) {
    open_.store(false);  // before the other: see begin()
    active_.store(false);
  }
  if (ended_) ended_(error);
}

void Capture::wake() {
  const std::lock_guard lock(mutex_);
  if (writer_) writer_->wake();
}

// ---- records ------------------------------------------------------------------------------------

std::uint32_t Capture::name(std::span<const Named> tensors) {
  Buffers& buffers = *owned_buffers_;
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
    out += kKindNames.at(static_cast<std::size_t>(tensor.kind));
    out += "\",\"";
    out += dtype_name(tensor.dtype);
    out += "\",";
    out += std::to_string(tensor.bytes);
    out += ']';
  }
  return first;
}

bool Capture::process_set(std::uint32_t set, std::uint64_t batch, std::span<const int> ranks) {
  if (!active()) return false;
  Buffers& buffers = *owned_buffers_;
  const std::lock_guard lock(buffers.mutex);
  std::string& out = buffers.pending.events;
  if (out.size() > buffers.text_limit) return false;
  append_event(out, "hvdtune_set", rank_);
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
  Buffers* buffers = active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  if (buffers != nullptr) put_one(buffers->ready, record, Stream::kReady);
}

void Capture::wait(const Wait& record) {
  Buffers* buffers = active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  if (buffers != nullptr) put_shared(buffers->waits, record, Stream::kWaits);
}

void Capture::put_mark(const Mark& mark) {
  Buffers* buffers = active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  if (buffers != nullptr) put_shared(buffers->marks, mark, Stream::kMarks);
}

void Capture::mark(MarkKind kind, std::int64_t value, std::string_view text) {
  Buffers* buffers = active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  if (buffers == nullptr) return;
  const Nanos now = monotonic_now();
  put_mark({now, value, kind, text.empty() ? kNone : text_id(*buffers, text)});
}

void Capture::counter(std::string_view name, double value) {
  Buffers* buffers = active() ? buffers_.load(std::memory_order_acquire) : nullptr;
  if (buffers == nullptr) return;
  put_shared(buffers->counters, {monotonic_now(), value, text_id(*buffers, name), 0},
             Stream::kCounters);
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
  append_event(out, "hvdtune_clock", rank_);
  out += "\"local_ns\":" + std::to_string(local) + ",\"offset_ns\":" + std::to_string(offset) +
         ",\"bound_ns\":" + std::to_string(bound) + "}}";
}

std::uint32_t Capture::text_id(Buffers& buffers, std::string_view text) {
  const std::string key(text.substr(0, kLongestText));
  const bool may_recur = key.size() <= kLongestRecurring;
  const std::lock_guard lock(buffers.mutex);
  if (may_recur) {
    if (const auto found = texts_.find(key); found != texts_.end()) return found->second;
    if (texts_.size() >= kMaxTexts) texts_.clear();
  }
  std::string& out = buffers.pending.texts;
  if (out.size() > buffers.text_limit) return kNone;
  const std::uint32_t id = next_text_++;
  if (!out.empty()) out += ',';
  out += '[';
  out += std::to_string(id);
  out += ',';
  append_json_string(out, key);
  out += ']';
  if (may_recur) texts_.emplace(key, id);
  return id;
}

Capture::CpuTimes Capture::cpu_times() const {
  return {process_cpu_now(), communication_cpu_.load(std::memory_order_relaxed)};
}

/// The caller holds mutex_.
void Capture::put_cpus_used(Nanos now, Nanos since) {
  const CpuTimes before = std::exchange(last_cpu_, cpu_times());
  Buffers* buffers = buffers_.load(std::memory_order_acquire);
  if (before.process == 0 || since == 0 || now <= since || buffers == nullptr) return;
  const auto put = [&](std::string_view name, Nanos cpu) {
    const double cpus = static_cast<double>(cpu) / static_cast<double>(now - since);
    put_shared(buffers->counters, {now, cpus, text_id(*buffers, name), 0}, Stream::kCounters);
  };
  put(kCpusUsed, last_cpu_.process - before.process);
  put(kCpusCommunicating, last_cpu_.communication - before.communication);
}

bool Capture::step() {
  const std::lock_guard lock(mutex_);
  const Nanos now = monotonic_now();
  const std::int64_t ended = steps() + 1;
  steps_.store(ended, std::memory_order_relaxed);
  const Nanos before = std::exchange(last_step_, now);
  if (active()) {
    put_mark({now, ended, MarkKind::kStep, kNone});
    put_cpus_used(now, before);
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
