#include "engine/recording/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace hvdtune {
namespace {

/// The most descriptions that are remembered; beyond that, all are forgotten.
constexpr std::size_t kMaxKnown = 1 << 16;
/// The most batches that wait for execution; those of process sets without this rank are never
/// executed.
constexpr std::size_t kMaxClosed = 1 << 14;
/// Shorter waits are not recorded.
constexpr Nanos kShortestWait = kMicrosecond;

std::uint32_t thread_number() {
  thread_local const auto number = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return number;
}

/// Automatic names are never used again, so the capture has one name for all.
std::string_view without_number(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const bool numbered = end != std::string_view::npos && name[end] == '.' && end + 1 < name.size();
  return numbered ? name.substr(0, end) : name;
}

template <typename T>
void append_bytes(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

constexpr std::size_t kLongestStallText = 4000;

const char* json_flag(bool flag) { return flag ? "true" : "false"; }

std::string settings_text(const wire::RuntimeSettings& settings) {
  // to_chars does not depend on the locale.
  std::array<char, 32> cycle{};
  const auto end =
      std::to_chars(cycle.data(), cycle.data() + cycle.size(),
                    static_cast<double>(settings.cycle_time) / static_cast<double>(kMillisecond))
          .ptr;
  return "{\"fusion_threshold\":" + std::to_string(settings.fusion_threshold) +
         ",\"cycle_time_ms\":" + std::string(cycle.data(), end) +
         ",\"chunk_size\":" + std::to_string(settings.chunk_size) +
         ",\"one_shot_limit\":" + std::to_string(settings.one_shot_limit) +
         ",\"nccl_bypass_limit\":" + std::to_string(settings.nccl_bypass_limit) +
         ",\"hierarchical_allreduce\":" + json_flag(settings.hierarchical_allreduce) +
         ",\"hierarchical_allgather\":" + json_flag(settings.hierarchical_allgather) +
         ",\"num_nccl_streams\":" + std::to_string(settings.nccl_streams) + "}";
}

}  // namespace

void Recorder::closed(std::uint64_t serial, Nanos time, Nanos first_ready) {
  if (!active()) return;
  if (closed_.size() >= kMaxClosed) closed_.pop_front();
  closed_.push_back({serial, time, first_ready});
}

/// Batches are executed in the order in which they were closed, but not all of them on this rank.
void Recorder::fill_in_times(capture::Batch& record) {
  while (!closed_.empty() && closed_.front().serial < record.serial) closed_.pop_front();
  if (closed_.empty() || closed_.front().serial != record.serial) return;
  record.scheduled = closed_.front().time;
  record.first_ready = closed_.front().first_ready;
  closed_.pop_front();
}

/// Once per file, and again if the number of a removed set is reused.
void Recorder::describe_set(std::uint32_t set, std::uint64_t batch,
                            const std::vector<int>& members) {
  DescribedSet& known = described_sets_[set];
  if (known.generation == capture_.generation() && known.members == members) return;
  if (capture_.process_set(set, batch, members)) known = {capture_.generation(), members};
}

void Recorder::executed(const wire::Schedule& schedule, const std::vector<OperationPtr>& batch,
                        const std::vector<int>& members, const Executor::BatchTimes& times,
                        std::uint64_t epoch, bool ok) {
  const wire::Request& head = batch.front()->request;
  capture::Batch record;
  record.begin = times.begin;
  record.packed = times.phases.packed;
  record.unpacking = times.phases.unpacking;
  record.end = monotonic_now();
  record.serial = schedule.batch;
  record.waited = times.waited;
  record.process_set = schedule.process_set;
  record.epoch = static_cast<std::uint32_t>(epoch);
  record.kind = static_cast<std::uint8_t>(head.kind);
  record.dtype = head.tensors.empty() ? 0 : static_cast<std::uint8_t>(head.tensors.front().dtype);
  record.reason = static_cast<std::uint8_t>(schedule.reason);
  record.flags = static_cast<std::uint8_t>((ok ? capture::kOk : 0) |
                                           (schedule.registered ? capture::kInPlace : 0));
  fill_in_times(record);
  // Only one pass over the operations: a large batch's do not stay in the cache for a second one.
  const std::uint32_t generation = capture_.generation();
  capture_.batch(record, [&](capture::TensorRuns::Batch& tensors) {
    std::int64_t bytes = 0;
    for (std::size_t at = 0; at < batch.size(); ++at) {
      prefetch_end(batch, at);
      Operation& operation = *batch[at];
      if (operation.recorded.generation != generation) look_up(operation);
      const RecordedAs& names = operation.recorded;
      bytes += names.bytes;
      std::uint32_t name = names.first_name;
      tensors.put(name, operation.submitted);
      for (std::uint32_t left = names.tensors; left > 1; --left) {
        if (name != capture::kNone) ++name;
        tensors.put(name, operation.submitted);
      }
    }
    record.bytes = bytes;
  });
  capture_.communicated(times.cpu);
  if (schedule.process_set != 0) describe_set(schedule.process_set, schedule.batch, members);
}

void Recorder::announced(const TensorEntry& entry, int rank, Nanos time) {
  if (entry.recorded_in != capture_.generation()) {
    const RecordedAs names = name(entry.description);
    if (names.first_name == capture::kNone) return;
    entry.recorded_name = names.first_name;
    entry.recorded_in = capture_.generation();
  }
  const std::size_t tensors = std::max<std::size_t>(entry.description.tensors.size(), 1);
  for (std::uint32_t i = 0; i < tensors; ++i) {
    capture_.ready({time, entry.recorded_name + i, static_cast<std::uint32_t>(rank)});
  }
}

void Recorder::refused(const wire::Request& request, const std::string& why) {
  capture_.mark(capture::MarkKind::kError, 0, request.name + ": " + why);
}

void Recorder::settings(const wire::RuntimeSettings& settings) {
  capture_.settings(settings.epoch, settings_text(settings));
}

void Recorder::stall(const std::string& report) {
  capture_.mark(capture::MarkKind::kStall, 0,
                std::string_view(report).substr(0, kLongestStallText));
}

void Recorder::waited(const Operation& operation, Nanos begin) {
  const Nanos end = monotonic_now();
  if (end - begin <= kShortestWait) return;
  const RecordedAs& names = operation.recorded;
  // On a GPU operations may be done before they are recorded.
  const bool named = !operation.on_device && operation.done.load(std::memory_order_acquire) &&
                     names.generation == capture_.generation();
  capture_.wait({begin, end, named ? names.first_name : capture::kNone, thread_number()});
}

/// Sets an operation's names in this recording; for a reused operation this is done once. A slot's
/// description is the one that all ranks agreed on last, and has a number.
void Recorder::look_up(Operation& operation) {
  const wire::Slot slot = operation.slot;
  if (slot == wire::kNoSlot || operation.agreement == 0) {
    operation.recorded = name(operation.request);
    return;
  }
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 1);
  Slot& last = by_slot_[slot];
  if (last.agreement != operation.agreement || last.names.generation != capture_.generation()) {
    last = {name(operation.request), operation.agreement};
  }
  operation.recorded = last.names;
}

/// If there is no room for a name, the generation is 0: there may be room next time.
RecordedAs Recorder::name(const wire::Request& request) {
  const std::string base(request.cacheable ? std::string_view(request.name)
                                           : without_number(request.name));
  key_ = base;
  key_ += '\0';
  append_bytes(key_, request.process_set);
  append_bytes(key_, request.kind);
  for (const wire::TensorSpec& tensor : request.tensors) {
    append_bytes(key_, tensor.dtype);
    append_bytes(key_, tensor.bytes());
  }
  const auto found = by_description_.find(key_);
  if (found != by_description_.end() && found->second.generation == capture_.generation()) {
    return found->second;
  }
  std::vector<std::string> texts;
  std::vector<capture::Named> tensors;
  const std::size_t count = request.tensors.size();
  texts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    texts.push_back(
        request.grouped ? base + "_" + std::to_string(i + 1) + "of" + std::to_string(count) : base);
    tensors.push_back({texts.back(), request.process_set, request.kind, request.tensors[i].dtype,
                       request.tensors[i].bytes()});
  }
  if (tensors.empty()) {
    tensors.push_back({base, request.process_set, request.kind, DType::kUint8, 0});
  }
  RecordedAs names{capture_.name(tensors), static_cast<std::uint32_t>(tensors.size()),
                   request.bytes(), 0};
  if (names.first_name == capture::kNone) return names;
  names.generation = capture_.generation();
  if (by_description_.size() >= kMaxKnown) by_description_.clear();
  by_description_[key_] = names;
  return names;
}

}  // namespace hvdtune
